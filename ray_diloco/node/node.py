"""One node: the training loop, with the exchange in lanes beside it.

The walk: a step (`trainer`), what it means for the exchange (`coordinator`), carried out between
this step and the next (`performer`, `weights`), with lanes (`exchange`) that run on beside it.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from ray_diloco.errors import (
    DISK_FAULTS,
    HubError,
    NodeInUseError,
    TrainingError,
    disk_error,
)
from ray_diloco.hub.repository import Repository
from ray_diloco.node.account import Account, Origin
from ray_diloco.node.checkpoint import Checkpoint, Keeping
from ray_diloco.node.claiming import Claimed, in_use
from ray_diloco.node.coordinator import Coordinator
from ray_diloco.node.exchange import Exchange
from ray_diloco.node.leaving import LaneUnfinished, finish_lane, say_goodbye, send_the_rest
from ray_diloco.node.performer import Performer
from ray_diloco.node.saving import DELTA, Saver, restore
from ray_diloco.node.silence import Silence, never_silent
from ray_diloco.node.training import StepReport, Training
from ray_diloco.node.waiting import Waiting
from ray_diloco.node.weights import Weights
from ray_diloco.protocol.clock import Micros, Port, micros
from ray_diloco.protocol.limits import reason_to_stop
from ray_diloco.protocol.node_card import NodeCard
from ray_diloco.protocol.run import NodeReport, NodeStatus, Recorder, RunLimits
from ray_diloco.protocol.settings import DilocoSettings

logger = logging.getLogger(__name__)

CLAIM = "claim"
FAREWELL_SECONDS = 5.0


class Node:
    """A worker, or the training half of a master. Used once: `run` until it gives the report."""

    def __init__(
        self,
        *,
        origin: Origin,
        settings: DilocoSettings,
        limits: RunLimits,
        trainer: Training,
        weights: Weights,
        exchange: Exchange,
        repository: Repository,
        port: Port,
        record: Recorder,
        takeover: bool = False,
        keeping: Keeping | None = None,
        resume: bool = False,
        reopens: bool = False,
        silent: Silence = never_silent,
    ) -> None:
        """``resume``: this goes on with earlier training under the name, even without a checkpoint.
        ``reopens``: so does the whole run, whatever its last global says of an end. ``silent``: at
        which boundaries it sends nothing.
        """
        self._node_id = origin.node_id
        self._nonce = origin.nonce
        self._settings = settings
        self._limits = limits
        self._trainer = trainer
        self._weights = weights
        self._exchange = exchange
        self._repository = repository
        self._port = port
        self._record = record
        self._takeover = takeover
        self._keeping = keeping or Keeping()
        self._resume = resume
        self._reopens = reopens
        self._silent = silent
        self._account = Account(origin, window=settings.inner_steps)
        self._stop_asked: str | None = None
        self._has_name = False
        self._holder: NodeCard | None = None
        self._free_since = Micros(0)
        self._start_from(0)

    def _start_from(self, first_step: int, claimed: Claimed | None = None) -> None:
        """Count on from the last local step that was ever used under this name."""
        self._first_step = first_step
        self._coordinator = Coordinator(
            self._settings,
            node_id=self._node_id,
            nonce=self._nonce,
            first_step=first_step,
            forerunners=claimed.forerunners if claimed is not None else None,
            over=claimed.publication_id if claimed is not None and self._reopens else None,
            silent=self._silent,
        )
        self._saver = Saver(
            self._keeping.shelf,
            every_steps=self._keeping.every_steps,
            node_id=self._node_id,
            nonce=self._nonce,
            first_step=first_step,
            trainer=self._trainer,
            weights=self._weights,
            exchange=self._exchange,
        )
        self._performer = Performer(
            node_id=self._node_id,
            coordinator=self._coordinator,
            trainer=self._trainer,
            weights=self._weights,
            exchange=self._exchange,
            saver=self._saver,
            port=self._port,
            record=self._record,
        )

    # -- from other threads ------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """Ask the node to send what it has and end."""
        self._stop_asked = self._stop_asked or reason
        self._port.interrupt()

    def status(self) -> NodeStatus:
        return self._account.status

    # -- the loop ----------------------------------------------------------------------------------

    def run(self) -> NodeReport:
        """Claim the name, wait for the global, train until the run ends, send the rest, depart."""
        with self.living():
            if self.begin():
                while self.reason_to_stop() is None:
                    self.after_step(self.step())
            return self.end()

    @contextmanager
    def living(self) -> Iterator[None]:
        """Around `begin`, `after_step` and `end`: whatever ends the node, its name is free again
        where that is possible, and its lanes end. TrainingError for a disk that gives out.
        """
        try:
            yield
        except BaseException as error:
            self._give_back_the_name(error)
            self._say("failed")
            if self._has_name and isinstance(error, Exception):
                told = {"local_step": self._coordinator.local_step, "tokens": self._trainer.tokens}
                self._record("node_failed", **told)
            if isinstance(error, OSError) and error.errno in DISK_FAULTS:
                raise disk_error(
                    f"node {self._node_id!r}", error, folder=self._exchange.state_dir
                ) from error
            raise
        finally:
            self._exchange.conclude()
            self._port.close()

    def begin(self) -> bool:
        """Take the name and wait for the global. False when the node was asked to stop before it
        had the name. NodeInUseError, and TrainingError when no global came in time.
        """
        if not self._take_name():
            return False
        self._await_permission()
        self._free_since = self._port.now()
        return True

    def after_step(self, report: StepReport) -> None:
        """What one call of the trainer means for the exchange: all that happens between this step
        and the next, waiting included.
        """
        try:
            self._performer.deliver()
        except Exception:
            self._coordinator.local_step += report.stepped  # trained, though nothing comes of it
            raise
        if report.stepped:
            self._performer.perform(
                self._coordinator.stepped(
                    now=self._port.now(),
                    tokens=report.tokens,
                    loss=report.loss,
                    may_send=self._exchange.may_send(),
                )
            )
        self._performer.save_when_due()
        self._performer.beat_when_due()
        self._say("training")
        self._await_permission()
        self._free_since = self._port.now()

    def end(self, otherwise: str = "") -> NodeReport:
        """Send what is unsent, say goodbye, and tell what was done; ``otherwise``: why, when it is
        not the node that had to stop. NodeInUseError when another process had the name for as long
        as there was something to do.
        """
        reason = self.reason_to_stop() or otherwise
        if self._has_name:
            self._depart(reason)
        self._require_use(reason)
        self._say("done")
        return self._report(reason)

    def _require_use(self, reason: str) -> None:
        """NodeInUseError when the node took no step because its name was in use for so long."""
        came_too_late = self._coordinator.local_step == self._first_step
        if self._holder is not None and came_too_late and self._stop_asked is None:
            raise NodeInUseError(f"{in_use(self._node_id, self._holder)}; it ended: {reason}")

    def _take_name(self) -> bool:
        """Go on from the checkpoint, or begin anew above all that was used under the name."""
        kept = self._keeping.kept
        facts = kept.facts if kept is not None else None
        claim = self._exchange.claim(
            takeover=self._takeover, kept=facts, watching=self._waits_for_its_name
        )
        try:
            claimed: Claimed = finish_lane(
                self._port, CLAIM, claim, wanted=lambda: self._stop_asked is None
            )
        except LaneUnfinished:
            return False
        self._has_name = True
        self._nonce = claimed.nonce
        self._account.known_as(claimed.nonce)
        if kept is not None and claimed.continues:
            self._go_on(kept, claimed)
        else:
            self._start_from(claimed.used, claimed)
            if self._keeping.shelf is not None:
                self._keeping.shelf.put_aside()
            if self._resume:
                self._trainer.local_step = claimed.reached
        resumed = self._coordinator.local_step if kept is not None and claimed.continues else None
        self._record(
            "node_started",
            nonce=self._nonce,
            first_step=self._first_step,
            resumed=resumed,
            left_at=claimed.left_at,
        )
        if kept is not None and not claimed.continues:
            unsent = str(kept.facts.standing.unsent_cells)
            self._record("checkpoint_outlived", nonce=kept.facts.nonce, unsent=unsent)
        self._say("waiting")
        return True

    def _waits_for_its_name(self, holder: NodeCard) -> None:
        """Called by the claim's lane, while nothing else goes on."""
        self._holder = holder
        self._record("name_in_use", nonce=holder.nonce, since=holder.started)
        self._say("waiting for its name")

    def _go_on(self, kept: Checkpoint, claimed: Claimed) -> None:
        """The same incarnation. When the repository has more of it than the checkpoint knows, the
        checkpoint's work was sent already.
        """
        facts = kept.facts
        restore(kept, trainer=self._trainer, weights=self._weights)
        self._account.note_data(self._trainer.fast_forwarded)
        self._start_from(facts.first_step, claimed)
        coordinator, standing = self._coordinator, facts.standing
        if claimed.own > facts.last_number:
            coordinator.resume_behind(standing, sent_up_to=claimed.own)
            self._trainer.local_step += coordinator.local_step - standing.local_step
            self._record("checkpoint_behind", sent=claimed.own, lost=str(coordinator.tally.lost))
            return
        actions = coordinator.resume(standing, now=self._port.now())
        if standing.job is not None:
            self._exchange.take_back(kept.folder / DELTA, standing.job.sent_as)
            self._performer.resend(standing.job)
        if not self._reopens:
            coordinator.stop_reason = claimed.stop
        self._performer.perform(actions)

    def step(self) -> StepReport:
        """One local step by the trainer, in the time that the port says it takes."""
        self._port.before_step(*self._quiet())
        report = self._trainer.step()
        self._port.after_step()
        self._account.stepped(report, began=self._free_since, ended=self._port.now())
        return report

    def _quiet(self) -> tuple[int, Micros]:
        """How many steps, and until when, nobody outside can tell the difference: boundaries, polls
        and the end of the run start a lane, and a checkpoint is what a crash leaves.
        """
        limits, local_step = self._limits, self._coordinator.local_step
        steps = min(self._coordinator.quiet_steps(), self._saver.quiet_steps(local_step))
        until = min(self._coordinator.next_poll, self._exchange.beat_due)
        if limits.max_steps is not None:
            steps = max(1, min(steps, limits.max_steps - self._trainer.local_step))
        if limits.max_seconds is not None:
            until = min(until, micros(limits.max_seconds))
        return steps, until

    def reason_to_stop(self) -> str | None:
        """Why no further step should be taken; None while training goes on."""
        steps, now = self._trainer.local_step, self._port.now()
        return (
            self._stop_asked
            or self._coordinator.stop_reason
            or reason_to_stop(self._limits, steps=steps, now=now)
        )

    def _await_permission(self) -> None:
        """Wait until the coordinator lets the node train, or the run is over."""
        waiting = Waiting(
            self._coordinator,
            self._performer,
            self._exchange,
            self._port,
            settings=self._settings,
            max_seconds=self._limits.max_seconds,
        )
        while self.reason_to_stop() is None and not waiting.is_over():
            self._say("waiting")
            if waiting.too_long():
                raise TrainingError(
                    f"node {self._node_id!r} found no global model on {self._repository.repo_id} "
                    f"within diloco.bootstrap_timeout={self._settings.bootstrap_timeout} s; "
                    "expected a master that runs there"
                )
            waiting.wait()
        if self._port.now() > waiting.began:
            self._record("waited", began=waiting.began)

    # -- the end -----------------------------------------------------------------------------------

    def _depart(self, reason: str) -> None:
        """Send what is unsent and say goodbye, each within `diloco.stop_timeout`."""
        self._say("stopping")
        self._record("node_stopping", reason=reason, local_step=self._coordinator.local_step)
        patience = micros(self._settings.stop_timeout)
        deadline = Micros(self._port.now() + patience)
        send_the_rest(self._coordinator, self._performer, self._port, deadline)
        self._performer.save_the_rest()
        self._say_goodbye(patience)

    def _say_goodbye(self, patience: Micros) -> None:
        last = self._coordinator.local_step
        if not say_goodbye(self._exchange, self._port, last_local_step=last, patience=patience):
            logger.warning("%s: could not say in time that it ends", self._node_id)

    def _give_back_the_name(self, error: BaseException) -> None:
        """A node that fails by a fault of its own says so, so that nobody waits for it; it may come
        back. Whoever is killed cannot, and a Hub that refuses needs no more requests.
        """
        silent = isinstance(error, NodeInUseError | HubError) or not isinstance(error, Exception)
        if silent or not self._has_name:
            return
        try:
            self._port.interrupt()  # a lane starts earlier than the step that failed had promised
            self._say_goodbye(micros(FAREWELL_SECONDS))
        except Exception as trouble:
            logger.warning("%s could not say that it failed: %s", self._node_id, trouble)

    # -- telling -----------------------------------------------------------------------------------

    def _say(self, state: str) -> None:
        self._account.say(
            state,
            now=self._port.now(),
            trainer=self._trainer,
            coordinator=self._coordinator,
            traffic=self._repository.traffic,
        )

    def _report(self, reason: str) -> NodeReport:
        return self._account.exchange_report(
            reason=reason,
            first_step=self._first_step,
            trainer=self._trainer,
            coordinator=self._coordinator,
            traffic=self._repository.traffic,
            mismatched=len(self._weights.mismatched),
        )
