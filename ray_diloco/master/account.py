"""What a master says of itself: its status while it runs, its report when it ends."""

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ray_diloco.hub.repository import Traffic
from ray_diloco.master.outer_loop import OuterLoop
from ray_diloco.master.publication import Publication, Refusal
from ray_diloco.protocol.clock import MICROS_PER_SECOND, Micros
from ray_diloco.protocol.global_card import GlobalCard
from ray_diloco.protocol.ledger import Ledger
from ray_diloco.protocol.paths import parse_delta_path
from ray_diloco.protocol.run import Evaluation, MasterReport, MasterStatus
from ray_diloco.protocol.staleness import staleness

logger = logging.getLogger(__name__)


class Account:
    """Counts what was published and evaluated. `status` may be read from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._status = MasterStatus()
        self._staleness: Counter[int] = Counter()
        self._last_staleness: float | None = None
        self._merged = 0
        self._fallbacks = 0
        self._refused: list[dict[str, Any]] = []
        self._evaluations: list[Evaluation] = []

    @property
    def status(self) -> MasterStatus:
        with self._lock:
            return self._status

    def say(self, state: str, *, now: Micros, loop: OuterLoop | None, traffic: Traffic) -> None:
        """Renew the status."""
        last = self._evaluations[-1] if self._evaluations else None
        status = replace(
            self._status,
            state=state,
            outer_step=loop.card.outer_step if loop else -1,
            deltas_merged=self._merged,
            deltas_rejected=len(self._refused),
            eval_loss=last.loss if last else None,
            evaluated_outer_step=last.outer_step if last else -1,
            tokens_total=loop.card.tokens_total if loop else 0,
            staleness=self._last_staleness,
            **asdict(traffic),
            missing=loop.attendance.missing() if loop else (),
            now=now,
        )
        with self._lock:
            self._status = status

    def published(
        self, publication: Publication, *, base: int, waited: Sequence[Micros]
    ) -> list[dict[str, Any]]:
        """Count a publication that followed the global of outer step ``base``; its deltas as
        values for the record. ``waited``: how long each was seen before the publication landed.
        """
        self._merged += len(publication.merged)
        told: list[dict[str, Any]] = []
        for candidate, pause in zip(publication.merged, waited, strict=True):
            card = candidate.card
            age = staleness(outer_step=base, base_outer_step=card.base_outer_step)
            self._staleness[age] += 1
            told.append(
                {
                    "node": card.node_id,
                    "nonce": card.nonce,
                    "local_step": card.local_step,
                    "covers": str(card.covers or ""),
                    "base_outer_step": card.base_outer_step,
                    "staleness": age,
                    "waited_seconds": pause / MICROS_PER_SECOND,
                    "tokens": card.tokens,
                    "loss": card.mean_loss,
                    "bytes": candidate.entry.size,
                }
            )
        if told:
            self._last_staleness = sum(each["staleness"] for each in told) / len(told)
        return told

    def aggregated(self, used: str, *, asked: str) -> None:
        """Count a round, by the aggregation that it had deltas enough for."""
        if used == asked:
            return
        self._fallbacks += 1
        if self._fallbacks == 1:
            logger.warning(
                "too few deltas in a round for diloco.aggregation=%s: it took the %s. "
                "Rounds wait for more with diloco.merge=quorum, grace or synchronous",
                asked,
                used,
            )

    def refused(self, refusal: Refusal) -> dict[str, Any]:
        """Count a delta that will not be merged; as values for the record."""
        told = describe_refusal(refusal)
        self._refused.append(told)
        return told

    def evaluated(self, evaluation: Evaluation) -> None:
        """Keep a held-out loss."""
        self._evaluations.append(evaluation)

    def report(
        self,
        *,
        loop: OuterLoop | None,
        reason: str,
        model: Path | None,
        traffic: Traffic,
        conflicts: int,
    ) -> MasterReport:
        """The end of one master; without a loop, of a standby that was never needed."""
        card = loop.card if loop is not None else GlobalCard(outer_step=0)
        return MasterReport(
            outer_steps=card.outer_step,
            deltas_merged=self._merged,
            accounts=_accounts(loop.ledger) if loop is not None else {},
            staleness=dict(sorted(self._staleness.items())),
            rejected=self._refused,
            evaluations=self._evaluations,
            tokens_total=card.tokens_total,
            stop_reason=reason,
            model_file=str(model or ""),
            model_sha256=card.model_sha256 or "",
            **asdict(traffic),
            conflicts=conflicts,
            fallback_rounds=self._fallbacks,
        )


def describe_refusal(refusal: Refusal) -> dict[str, Any]:
    """A refused delta as values for the record and the report."""
    where = parse_delta_path(refusal.entry.path)
    return {
        "node": where.node_id if where else "",
        "local_step": where.local_step if where else -1,
        "path": refusal.entry.path,
        "covers": str(refusal.covers),
        "reason": refusal.reason,
    }


def _accounts(ledger: Ledger) -> dict[str, dict[str, dict[str, Any]]]:
    accounts: dict[str, dict[str, dict[str, Any]]] = {}
    for (node_id, nonce), account in sorted(ledger.accounts.items()):
        accounts.setdefault(node_id, {})[nonce] = {
            "merged": str(account.merged),
            "rejected": str(account.rejected),
            "tokens": account.tokens,
            "deltas": account.deltas,
        }
    return accounts
