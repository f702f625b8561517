"""The master's memory of what the global model contains; it travels with the outer state in
every publication.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ray_diloco.errors import GlobalError
from ray_diloco.protocol.delta_card import DeltaCard
from ray_diloco.protocol.global_card import NodeRow
from ray_diloco.protocol.ranges import NO_STEPS, StepRanges

REASONS_KEPT = 8
"""How many rejections a node's row shows."""

REASON_LENGTH = 200
"""How much of a reason a row shows: reasons quote what others wrote, and a card has a limit."""

PEER = ""
"""Stands for the nonce of a plain peer, which has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One nonce of one node. ``last_local_step`` is the mark: up to it everything was merged or
    rejected, for ever.
    """

    last_local_step: int = 0
    merged: StepRanges = NO_STEPS
    rejected: StepRanges = NO_STEPS
    tokens: int = 0
    deltas: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What was merged and what was rejected; a value: every change gives a new ledger."""

    accounts: Mapping[tuple[str, str], Account] = field(
        default_factory=dict[tuple[str, str], Account]
    )
    """By (node id, nonce); the nonce of a peer is `PEER`."""
    peer_blobs: frozenset[tuple[str, str]] = frozenset()
    """(path, blob id) of every delta of a peer that was merged or rejected."""
    rows: Mapping[str, NodeRow] = field(default_factory=dict[str, NodeRow])
    """The `nodes` table: the newest nonce of each node."""

    def account(self, node_id: str, nonce: str | None) -> Account:
        return self.accounts.get((node_id, nonce or PEER), Account())

    def has(self, card: DeltaCard, *, path: str, blob_id: str) -> bool:
        """Whether this delta was merged or rejected before."""
        if card.nonce is None:
            return (path, blob_id) in self.peer_blobs
        return card.local_step <= self.account(card.node_id, card.nonce).last_local_step

    def merged(self, card: DeltaCard, *, path: str, blob_id: str, outer_step: int) -> "Ledger":
        """With this delta merged into the global of ``outer_step``."""
        old = self.account(card.node_id, card.nonce)
        new = replace(
            old,
            last_local_step=max(old.last_local_step, card.local_step),
            merged=old.merged.union(card.cells or NO_STEPS),
            tokens=old.tokens + (card.tokens or 0),
            deltas=old.deltas + 1,
        )
        return self._with(card.node_id, card.nonce, new, path, blob_id, outer_step)

    def rejected(
        self,
        node_id: str,
        nonce: str | None,
        local_step: int,
        *,
        covers: StepRanges,
        reason: str,
        path: str,
        blob_id: str,
        outer_step: int,
    ) -> "Ledger":
        """With this delta refused for its content; its node reads why in its row.

        ``nonce`` is None for a peer, and when the header could not be read: then no mark moves,
        since a file that says nothing of itself must not make later deltas of its node count as
        old.
        """
        row = self.rows.get(node_id)
        if nonce is None and row is not None and row.nonce is not None:
            ledger = replace(self, peer_blobs=self.peer_blobs | {(path, blob_id)})
        else:
            old = self.account(node_id, nonce)
            new = replace(
                old,
                last_local_step=max(old.last_local_step, local_step),
                rejected=old.rejected.union(covers.minus(old.merged)),
            )
            ledger = self._with(node_id, nonce, new, path, blob_id, outer_step)
        row = ledger.rows[node_id]
        if nonce is not None and row.nonce != nonce:
            return ledger
        reasons = (*row.rejected, (local_step, reason[:REASON_LENGTH]))[-REASONS_KEPT:]
        return replace(ledger, rows={**ledger.rows, node_id: replace(row, rejected=reasons)})

    def introduced(self, node_id: str, nonce: str, *, outer_step: int) -> "Ledger":
        """With a row for this nonce, although nothing of it was merged yet."""
        row = self._row(node_id, nonce, self.account(node_id, nonce), outer_step)
        old = self.rows.get(node_id)
        if old is not None and old.nonce == nonce:
            return self
        return replace(self, rows={**self.rows, node_id: row})

    def done(self, node_id: str, nonce: str, *, outer_step: int) -> "Ledger":
        """With this node finished, by its own word."""
        row = self._row(node_id, nonce, self.account(node_id, nonce), outer_step)
        return replace(self, rows={**self.rows, node_id: replace(row, done=True)})

    def _row(self, node_id: str, nonce: str | None, account: Account, outer_step: int) -> NodeRow:
        old = self.rows.get(node_id)
        same = old is not None and old.nonce == nonce
        return NodeRow(
            nonce=nonce,
            last_local_step=account.last_local_step,
            seen_outer_step=outer_step,
            tokens=account.tokens,
            rejected=old.rejected if same and old else (),
            done=old.done if same and old else False,
        )

    def _with(
        self,
        node_id: str,
        nonce: str | None,
        account: Account,
        path: str,
        blob_id: str,
        outer_step: int,
    ) -> "Ledger":
        rows = dict(self.rows)
        if not self._outlived(node_id, nonce, account):
            rows[node_id] = self._row(node_id, nonce, account, outer_step)
        return Ledger(
            accounts={**self.accounts, (node_id, nonce or PEER): account},
            peer_blobs=self.peer_blobs | {(path, blob_id)} if nonce is None else self.peer_blobs,
            rows=rows,
        )

    def _outlived(self, node_id: str, nonce: str | None, account: Account) -> bool:
        """A newer nonce has the row: the nonces of a node number their steps upwards, so a late
        delta of an older one does not take it back.
        """
        row = self.rows.get(node_id)
        if row is None or row.nonce == nonce:
            return False
        return account.last_local_step < row.last_local_step

    @property
    def tokens_total(self) -> int:
        return sum(account.tokens for account in self.accounts.values())

    def to_json(self) -> str:
        return json.dumps(
            {
                "accounts": [
                    [
                        node_id,
                        nonce,
                        account.last_local_step,
                        str(account.merged),
                        str(account.rejected),
                        account.tokens,
                        account.deltas,
                    ]
                    for (node_id, nonce), account in sorted(self.accounts.items())
                ],
                "peer_blobs": sorted(self.peer_blobs),
            },
            sort_keys=True,
        )

    @classmethod
    def from_json(cls, text: str, *, rows: Mapping[str, NodeRow]) -> "Ledger":
        """Read what `to_json` wrote; the rows come from the global card of the same publication.
        GlobalError.
        """
        try:
            fields: dict[str, Any] = json.loads(text)
            accounts = {
                (str(node_id), str(nonce)): Account(
                    last_local_step=int(last),
                    merged=StepRanges.parse(merged),
                    rejected=StepRanges.parse(rejected),
                    tokens=int(tokens),
                    deltas=int(deltas),
                )
                for node_id, nonce, last, merged, rejected, tokens, deltas in fields["accounts"]
            }
            blobs = frozenset((str(path), str(blob)) for path, blob in fields["peer_blobs"])
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            raise GlobalError("the ledger in the outer state is malformed") from None
        return cls(accounts=accounts, peer_blobs=blobs, rows=dict(rows))
