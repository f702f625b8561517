"""The held-out loss of one global after another, beside the rounds."""

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray_diloco.master.account import Account
from ray_diloco.master.evaluator import Evaluator
from ray_diloco.protocol.clock import Compute, Effect, Micros, Port
from ray_diloco.protocol.global_card import GlobalCard
from ray_diloco.protocol.run import Evaluation, Recorder

EVALUATE = "evaluate"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unevaluated:
    file: Path
    outer_step: int
    tokens_total: int
    at: int


class Evaluations:
    """At most one at a time; a global that still waits when a newer one comes is passed over.
    ``evaluator`` None: there are none.
    """

    def __init__(
        self,
        evaluator: Evaluator | None,
        *,
        port: Port,
        account: Account,
        record: Recorder,
        takes: Micros,
    ) -> None:
        """``takes``: one evaluation in virtual time, in which everybody else goes on."""
        self._evaluator = evaluator
        self._port = port
        self._account = account
        self._record = record
        self._takes = takes
        self._next: _Unevaluated | None = None
        self._running: _Unevaluated | None = None

    @property
    def pending(self) -> bool:
        return self._next is not None or self._running is not None

    @property
    def files(self) -> list[Path]:
        """What is needed still."""
        return [each.file for each in (self._next, self._running) if each is not None]

    def note(self, file: Path, card: GlobalCard) -> None:
        """There is a new global."""
        if self._evaluator is not None:
            self._next = _Unevaluated(
                file=file,
                outer_step=card.outer_step,
                tokens_total=card.tokens_total,
                at=self._port.now(),
            )

    def start(self) -> None:
        """Begin with what waits, unless one is under way."""
        if self._next is None or self._running is not None:
            return
        self._running, self._next = self._next, None
        self._port.start(EVALUATE, self._evaluate(self._running.file))

    def finished(self, loss: float) -> None:
        """The lane has ended with this loss."""
        done, self._running = self._running, None
        assert done is not None
        self._account.evaluated(
            Evaluation(
                outer_step=done.outer_step, loss=loss, tokens_total=done.tokens_total, at=done.at
            )
        )
        self._record(
            "evaluation",
            outer_step=done.outer_step,
            loss=loss,
            tokens_total=done.tokens_total,
            published_at=done.at,
        )

    def _evaluate(self, file: Path) -> Generator[Effect, Any, float]:
        evaluator = self._evaluator
        assert evaluator is not None
        return (yield Compute(self._takes, lambda: evaluator.loss(file)))
