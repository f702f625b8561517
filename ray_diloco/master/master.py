"""The master: look, fetch, merge, step, publish; then look again.

The walk of a round: `collecting` gets what the listing names, `round_files` streams the mean and
the outer step into the next global's files, `publishing` makes them the truth in one commit;
`rounds` holds them together, and `outer_loop` decides. A round is one lane, the held-out loss
another, the heartbeat a third. Before all that `opening` publishes the first global or takes up
what is there (`recovery`); a standby waits in `standby` until it is needed.
"""

import logging
from collections.abc import Generator
from pathlib import Path
from typing import Any

from ray_diloco.errors import QuotaExceeded, TrainingError, TransientHubError
from ray_diloco.hub.patience import Retry
from ray_diloco.hub.repository import Repository
from ray_diloco.hub.signature import Signer, Trust
from ray_diloco.master.account import Account
from ray_diloco.master.evaluating import EVALUATE, Evaluations
from ray_diloco.master.evaluator import Evaluator
from ray_diloco.master.heart import Heart
from ray_diloco.master.means import Means
from ray_diloco.master.opening import Opening
from ray_diloco.master.outer_loop import OuterLoop
from ray_diloco.master.publishing import MOST_CONFLICTS, SupersededError
from ray_diloco.master.recovery import Opened
from ray_diloco.master.rounds import Rounds
from ray_diloco.master.standby import watch
from ray_diloco.protocol.clock import Effect, Idle, Lane, LaneOutcome, Micros, Port, micros
from ray_diloco.protocol.run import MasterReport, MasterStatus, Recorder, RunIdentity, RunLimits
from ray_diloco.protocol.settings import DilocoSettings
from ray_diloco.tensors.dtypes import State
from ray_diloco.tensors.schema import StateSchema

logger = logging.getLogger(__name__)

WATCH, OPEN, ROUND, BEAT = "watch", "open", "round", "beat"
STOPS = 3
"""Times ``diloco.stop_timeout`` that a master which was asked to stop waits at most."""
CLOSING_POLL = 0.5
"""Seconds between looks, at most, of a master that only waits for its nodes to end."""


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
        began: str | None = None,
        standby: bool = False,
        squash_every: int = 0,
        work_seconds: float = 0.0,
        commits_per_hour: int | None = None,
        signer: Signer | None = None,
        trust: Trust | None = None,
        initial: State,
        schema: StateSchema,
        evaluator: Evaluator | None,
        repository: Repository,
        retry: Retry,
        port: Port,
        record: Recorder,
        state_dir: Path,
    ) -> None:
        """``initial``: the model that a new run starts from. ``expected``: nodes to wait for.
        ``resume``: go on with the run even when it has ended; ``began``: since then, where all
        participants read one clock. ``standby``: lead only when whoever
        leads is silent for `lease_seconds`. ``commits_per_hour``: of all participants; None: nobody
        counts. ``work_seconds``: what a merge, and an evaluation beside it, takes in virtual time.
        ``signer``: of globals. ``trust``: whose deltas and globals are taken; None: everybody's.
        """
        self._master_id = master_id
        self._limits = limits
        self._settings = settings
        self._expected = expected
        self._resume = resume
        self._began = began
        self._standby = standby
        self._initial = initial
        self._repository = repository
        self._retry = retry
        self._port = port
        self._record = record
        self._state_dir = state_dir
        self._account = Account()
        self._work_time = micros(work_seconds)
        self._evaluations = Evaluations(
            evaluator, port=port, account=self._account, record=record, takes=self._work_time
        )
        self._means = Means.of(
            settings,
            schema=schema,
            nodes=len(expected),
            master_id=master_id,
            repository=repository,
            retry=retry,
            port=port,
            record=record,
            account=self._account,
            state_dir=state_dir,
            commits_per_hour=commits_per_hour,
            squash_every=squash_every,
            signer=signer,
            trust=trust,
            merge_time=self._work_time,
        )
        self._opening = Opening(
            repository,
            retry,
            publisher=self._means.publisher,
            recovery=self._means.recovery,
            clock=port,
            run=run,
            resume=resume,
            fragments=settings.fragments,
        )
        self._loop: OuterLoop | None = None
        self._heart: Heart | None = None
        self._beating = False
        self._stop_asked: str | None = None
        self._leaves_at: Micros | None = None
        self._lost: set[str] = set()

    # -- from other threads ------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """The nodes have been asked to end: look often, and end when they have. Nodes elsewhere,
        which nobody has asked, are left to themselves once those that were asked have had their
        time, ``3 * diloco.stop_timeout``; the run stays open for whoever leads it on.
        """
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
        """Open or take up the run, merge until every node has ended, close it.

        SupersededError when another master leads, TrainingError when the disk gives out.
        """
        try:
            rounds = self._begin()
            if rounds is not None:
                self._lead(rounds)
            self._say("done")
            return self._report(rounds)
        except OSError as error:
            self._say("failed")
            raise TrainingError(
                f"the master's folder {self._state_dir} failed it: {error}; make room there and "
                "start again, nothing is lost"
            ) from error
        except BaseException:
            self._say("failed")
            raise
        finally:
            self._retry.conclude()
            self._port.close()

    def _begin(self) -> Rounds | None:
        """Lead, at once or as a standby when it is time; None when that never came."""
        self._say("starting")
        for attempt in range(MOST_CONFLICTS):
            if self._standby and self._watch() == "stopped":
                return None
            try:
                return self._open()
            except SupersededError:
                if attempt == MOST_CONFLICTS - 1:
                    raise
                logger.info("another master began at the same time; looking again")
        raise AssertionError("the last attempt returns or raises")

    def _watch(self) -> str:
        settings = self._settings
        assert settings.lease_seconds is not None, "a standby has a lease to watch"
        self._say("standing by")
        lane = watch(
            self._repository,
            self._retry,
            self._port,
            lease=micros(settings.lease_seconds),
            poll=micros(settings.poll_interval),
            stopped=lambda: self._stop_asked is not None,
        )
        return self._through(WATCH, lane)

    def _open(self) -> Rounds:
        means = self._means
        opening = self._opening.open(
            self._initial, schema=means.schema, optimizer=means.optimizer, shelf=means.shelf
        )
        opened: Opened = self._through(OPEN, opening)
        card = opened.card
        self._record(
            "opened",
            outer_step=card.outer_step,
            model_sha256=card.model_sha256,
            master_epoch=card.master_epoch,
        )
        loop = self._loop = OuterLoop(
            card=card,
            ledger=opened.ledger,
            expected=self._expected,
            anew=self._resume,
            began=self._began,
            node_timeout=self._settings.node_timeout,
            max_tokens=self._limits.max_tokens,
            keep_merged=self._settings.keep_merged,
            now=self._port.now(),
        )
        if self._settings.lease_seconds is not None:
            self._heart = Heart(
                self._repository,
                self._retry,
                self._port,
                loop=loop,
                publisher=means.publisher,
                master_id=self._master_id,
                lease=micros(self._settings.lease_seconds),
            )
        rounds = Rounds(opened, loop, means)
        self._evaluations.note(rounds.files.model, card)
        return rounds

    def _through(self, name: str, lane: Lane) -> Any:
        """A lane from its start to its end, nothing beside it."""
        self._port.start(name, lane)
        while not (outcomes := self._port.collect()):
            self._port.wait()
        return _value_of(outcomes[0])

    def _lead(self, rounds: Rounds) -> None:
        loop = self._loop
        assert loop is not None
        looking = not loop.closed
        if looking:
            self._port.start(ROUND, rounds.round())
        while looking or self._evaluations.pending:
            self._evaluations.start()
            self._start_beat(looking=looking)
            self._say("waiting")
            self._port.wait(self._heart.due if self._heart and not self._beating else None)
            for outcome in self._port.collect():
                value = _value_of(outcome)
                if outcome.name == ROUND:
                    self._keep_round(rounds, loop, published=value)
                    looking = not loop.closed and not self._leaves(loop)
                    if looking:
                        self._port.start(ROUND, self._next_round(loop, rounds))
                elif outcome.name == EVALUATE:
                    self._evaluations.finished(value)
                else:
                    self._beating = False

    def _leaves(self, loop: OuterLoop) -> bool:
        """Whether all have had the time for a last delta, a goodbye and a last round."""
        if self._stop_asked is None:
            return False
        now = self._port.now()
        if self._leaves_at is None:
            self._leaves_at = Micros(now + STOPS * micros(self._settings.stop_timeout))
        if now < self._leaves_at:
            return False
        still = ", ".join(sorted(loop.attendance.silences()))
        logger.warning("stopped while %s still train; the run stays open", still or "others")
        return True

    def _keep_round(self, rounds: Rounds, loop: OuterLoop, *, published: bool) -> None:
        if published:
            self._evaluations.note(rounds.files.model, loop.card)
        state = [rounds.files.state] if rounds.files.state is not None else []
        self._means.shelf.keep_only([rounds.files.model, *state, *self._evaluations.files])

    def _next_round(self, loop: OuterLoop, rounds: Rounds) -> Generator[Effect, Any, bool]:
        poll = self._settings.poll_interval
        interval = poll if self._stop_asked is None else min(poll, CLOSING_POLL)
        due = (loop.attendance.next_silence(self._port.now()), rounds.next_merge)
        yield Idle(micros(interval), until=min((at for at in due if at is not None), default=None))
        while self._lost:
            loop.attendance.forget(self._lost.pop())
        if self._stop_asked is not None:
            loop.attendance.forget_unseen()
        try:
            return (yield from rounds.round())
        except (QuotaExceeded, TransientHubError):
            if self._stop_asked is not None:
                raise
            logger.warning("no round: the hub has not answered for long; trying on")
            return False

    def _start_beat(self, *, looking: bool) -> None:
        if self._heart is None or self._beating or not looking:
            return
        self._heart.listen()
        if self._heart.due <= self._port.now():
            self._beating = True
            self._port.start(BEAT, self._heart.beat())

    # -- telling -----------------------------------------------------------------------------------

    def _say(self, state: str) -> None:
        self._account.say(
            state, now=self._port.now(), loop=self._loop, traffic=self._repository.traffic
        )

    def _report(self, rounds: Rounds | None) -> MasterReport:
        return self._account.report(
            loop=self._loop,
            reason=self._stop_asked or (self._loop.card.stop if self._loop else None) or "",
            model=rounds.files.model if rounds is not None else None,
            traffic=self._repository.traffic,
            conflicts=self._means.publisher.conflicts,
        )


def _value_of(outcome: LaneOutcome) -> Any:
    if outcome.error is not None:
        raise outcome.error
    return outcome.value
