"""The master: look, fetch, merge, step, publish; then look again.

The walk of a round: `collecting` gets what the listing names, `round_files` streams the mean and
the outer step into the next global's files, `publishing` makes them the truth in one commit;
`rounds` holds them together, and `outer_loop` decides. A round is one lane, the held-out loss
another.
"""

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray_diloco.hub.patience import Retry
from ray_diloco.hub.repository import Repository
from ray_diloco.master.account import Account
from ray_diloco.master.collecting import Collector
from ray_diloco.master.evaluator import Evaluator
from ray_diloco.master.opening import open_run
from ray_diloco.master.outer_loop import OuterLoop
from ray_diloco.master.outer_optimizer import OuterOptimizer
from ray_diloco.master.publishing import Publisher
from ray_diloco.master.rounds import Rounds
from ray_diloco.master.shelf import Shelf
from ray_diloco.protocol.clock import Compute, Effect, Idle, LaneOutcome, Micros, Port, micros
from ray_diloco.protocol.run import (
    Evaluation,
    MasterReport,
    MasterStatus,
    Recorder,
    RunIdentity,
    RunLimits,
)
from ray_diloco.protocol.settings import DilocoSettings
from ray_diloco.tensors.dtypes import State
from ray_diloco.tensors.schema import StateSchema

OPEN, ROUND, EVALUATE = "open", "round", "evaluate"
CLOSING_POLL = 0.5
"""Seconds between looks, at most, of a master that only waits for its nodes to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unevaluated:
    file: Path
    outer_step: int
    tokens_total: int
    at: int


class Master:
    """Leads one run. Used once: `run` until it gives the report."""

    def __init__(
        self,
        *,
        master_id: str,
        run: RunIdentity,
        limits: RunLimits,
        settings: DilocoSettings,
        expected: tuple[str, ...],
        resume: bool,
        initial: State,
        schema: StateSchema,
        evaluator: Evaluator | None,
        repository: Repository,
        retry: Retry,
        port: Port,
        record: Recorder,
        state_dir: Path,
    ) -> None:
        """``initial``: the model that a new run starts from. ``expected``: nodes to wait for."""
        self._run_identity = run
        self._limits = limits
        self._settings = settings
        self._expected = expected
        self._resume = resume
        self._initial = initial
        self._schema = schema
        self._evaluator = evaluator
        self._repository = repository
        self._retry = retry
        self._port = port
        self._record = record
        self._shelf = Shelf(state_dir / "globals")
        self._collector = Collector(repository, retry, state_dir / "deltas")
        self._publisher = Publisher(repository, retry, port, master_id=master_id)
        self._optimizer = OuterOptimizer(lr=settings.outer_lr, momentum=settings.outer_momentum)
        self._account = Account()
        self._loop: OuterLoop | None = None
        self._next: _Unevaluated | None = None
        self._evaluating: _Unevaluated | None = None
        self._stop_asked: str | None = None
        self._lost: set[str] = set()

    # -- from other threads ------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """The nodes have been asked to end: look often, and end when they have."""
        self._stop_asked = self._stop_asked or reason
        self._port.interrupt()

    def ended(self, node_id: str, *, failed: bool) -> None:
        """This node's process has ended: look now rather than at the next poll. One that failed
        can say no more, so it is not waited for.
        """
        if failed:
            self._lost.add(node_id)
        self._port.interrupt()

    def status(self) -> MasterStatus:
        return self._account.status

    # -- the loop ----------------------------------------------------------------------------------

    def run(self) -> MasterReport:
        """Open or take up the run, merge until every node has ended, close it."""
        try:
            rounds = self._open()
            self._lead(rounds)
            self._say("done")
            return self._report(rounds)
        except BaseException:
            self._say("failed")
            raise
        finally:
            self._port.close()

    def _open(self) -> Rounds:
        self._say("starting")
        opening = open_run(
            self._initial,
            schema=self._schema,
            run=self._run_identity,
            resume=self._resume,
            optimizer=self._optimizer,
            repository=self._repository,
            retry=self._retry,
            publisher=self._publisher,
            clock=self._port,
            folder=self._shelf.new(),
        )
        self._port.start(OPEN, opening)
        self._port.wait()
        while not (outcomes := self._port.collect()):
            self._port.wait()
        opened = _value_of(outcomes[0])
        card = opened.card
        self._record("opened", outer_step=card.outer_step, model_sha256=card.model_sha256)
        self._loop = OuterLoop(
            card=card,
            ledger=opened.ledger,
            expected=self._expected,
            node_timeout=self._settings.node_timeout,
            max_tokens=self._limits.max_tokens,
            now=self._port.now(),
        )
        rounds = Rounds(
            opened,
            self._loop,
            settings=self._settings,
            schema=self._schema,
            optimizer=self._optimizer,
            repository=self._repository,
            retry=self._retry,
            collector=self._collector,
            publisher=self._publisher,
            shelf=self._shelf,
            account=self._account,
            clock=self._port,
            record=self._record,
        )
        self._note_global(rounds)
        return rounds

    def _lead(self, rounds: Rounds) -> None:
        assert self._loop is not None
        self._port.start(ROUND, rounds.round())
        looking = True
        while looking or self._evaluating is not None or self._next is not None:
            self._start_evaluation()
            self._say("waiting")
            self._port.wait()
            for outcome in self._port.collect():
                value = _value_of(outcome)
                if outcome.name == EVALUATE:
                    self._keep_evaluation(value)
                    continue
                if value:
                    self._note_global(rounds)
                self._shelf.keep_only(self._needed(rounds))
                looking = not self._loop.closed
                if looking:
                    self._port.start(ROUND, self._next_round(self._loop, rounds))

    def _next_round(self, loop: OuterLoop, rounds: Rounds) -> Generator[Effect, Any, bool]:
        poll = self._settings.poll_interval
        interval = poll if self._stop_asked is None else min(poll, CLOSING_POLL)
        yield Idle(micros(interval), until=loop.next_silence())
        for node_id in tuple(self._lost):
            loop.forget(node_id)
        return (yield from rounds.round())

    # -- evaluation --------------------------------------------------------------------------------

    def _note_global(self, rounds: Rounds) -> None:
        """There is a new global to evaluate; one that still waited is passed over."""
        assert self._loop is not None
        if self._evaluator is not None:
            self._next = _Unevaluated(
                file=rounds.files.model,
                outer_step=self._loop.card.outer_step,
                tokens_total=self._loop.card.tokens_total,
                at=self._port.now(),
            )

    def _start_evaluation(self) -> None:
        if self._next is None or self._evaluating is not None:
            return
        self._evaluating, self._next = self._next, None
        self._port.start(EVALUATE, self._evaluate(self._evaluating.file))

    def _evaluate(self, file: Path) -> Generator[Effect, Any, float]:
        assert self._evaluator is not None
        evaluator = self._evaluator
        return (yield Compute(Micros(0), lambda: evaluator.loss(file)))

    def _keep_evaluation(self, loss: float) -> None:
        done, self._evaluating = self._evaluating, None
        assert done is not None
        self._account.evaluated(
            Evaluation(
                outer_step=done.outer_step, loss=loss, tokens_total=done.tokens_total, at=done.at
            )
        )
        self._record(
            "evaluation", outer_step=done.outer_step, loss=loss, tokens_total=done.tokens_total
        )

    def _needed(self, rounds: Rounds) -> list[Path]:
        waiting = [each.file for each in (self._next, self._evaluating) if each is not None]
        state = [rounds.files.state] if rounds.files.state is not None else []
        return [rounds.files.model, *state, *waiting]

    # -- telling -----------------------------------------------------------------------------------

    def _say(self, state: str) -> None:
        self._account.say(
            state, now=self._port.now(), loop=self._loop, traffic=self._repository.traffic
        )

    def _report(self, rounds: Rounds) -> MasterReport:
        assert self._loop is not None
        return self._account.report(
            loop=self._loop,
            reason=self._stop_asked or self._loop.card.stop or "",
            model=rounds.files.model,
            traffic=self._repository.traffic,
            conflicts=self._publisher.conflicts,
        )


def _value_of(outcome: LaneOutcome) -> Any:
    if outcome.error is not None:
        raise outcome.error
    return outcome.value
