"""One node: the training loop, with the exchange in lanes beside it.

The walk: a step (`trainer`), what it means for the exchange (`coordinator`), carried out between
this step and the next (`performer`, `weights`), with lanes (`exchange`) that run on beside it.
"""

import logging
from typing import Any

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
from ray_diloco.node.claiming import Claimed
from ray_diloco.node.coordinator import Coordinator
from ray_diloco.node.exchange import Exchange
from ray_diloco.node.performer import Performer
from ray_diloco.node.saving import DELTA, Saver, restore
from ray_diloco.node.trainer import StepReport, Trainer
from ray_diloco.node.weights import Weights
from ray_diloco.protocol.clock import Lane, Micros, Port, micros
from ray_diloco.protocol.limits import reason_to_stop
from ray_diloco.protocol.run import NodeReport, NodeStatus, Recorder, RunLimits
from ray_diloco.protocol.settings import DilocoSettings

logger = logging.getLogger(__name__)

CLAIM, DEPART = "claim", "depart"
FAREWELL_SECONDS = 5.0


class Node:
    """A worker, or the training half of a master. Used once: `run` until it gives the report."""

    def __init__(
        self,
        *,
        origin: Origin,
        settings: DilocoSettings,
        limits: RunLimits,
        trainer: Trainer,
        weights: Weights,
        exchange: Exchange,
        repository: Repository,
        port: Port,
        record: Recorder,
        takeover: bool = False,
        keeping: Keeping | None = None,
        resume: bool = False,
        reopens: bool = False,
    ) -> None:
        """``resume``: this goes on with earlier training under the name, even without a checkpoint.
        ``reopens``: so does the whole run, whatever its last global says of an end.
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
        self._account = Account(origin, window=settings.inner_steps)
        self._stop_asked: str | None = None
        self._has_name = False
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
        try:
            if self._begin():
                self._await_permission()
                reason = self._train()
                self._depart(reason)
            else:
                reason = self._stop_asked or ""
        except BaseException as error:
            self._give_back_the_name(error)
            self._say("failed")
            if isinstance(error, OSError) and error.errno in DISK_FAULTS:
                raise disk_error(
                    f"node {self._node_id!r}", error, folder=self._exchange.state_dir
                ) from error
            raise
        else:
            self._say("done")
            return self._report(reason)
        finally:
            self._exchange.conclude()
            self._port.close()

    def _begin(self) -> bool:
        """Take the name; go on from the checkpoint, or begin anew above all that was used. False
        when the node was asked to stop before it had the name.
        """
        kept = self._keeping.kept
        facts = kept.facts if kept is not None else None
        claim = self._exchange.claim(takeover=self._takeover, kept=facts)
        claimed: Claimed | None = self._finish_lane(CLAIM, claim, while_wanted=True)
        if claimed is None:
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
            "node_started", nonce=self._nonce, first_step=self._first_step, resumed=resumed
        )
        if kept is not None and not claimed.continues:
            unsent = str(kept.facts.standing.unsent.steps)
            self._record("checkpoint_outlived", nonce=kept.facts.nonce, unsent=unsent)
        return True

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
        self._performer.perform(actions)

    def _train(self) -> str:
        while (reason := self._reason_to_stop()) is None:
            report = self._step()
            self._performer.deliver()
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
        return reason

    def _step(self) -> StepReport:
        began = self._port.now()
        self._port.before_step(*self._quiet())
        report = self._trainer.step()
        self._port.after_step()
        self._account.stepped(report, began=began, ended=self._port.now())
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

    def _reason_to_stop(self) -> str | None:
        steps, now = self._trainer.local_step, self._port.now()
        return (
            self._stop_asked
            or self._coordinator.stop_reason
            or reason_to_stop(self._limits, steps=steps, now=now)
        )

    def _await_permission(self) -> None:
        """Wait until the coordinator lets the node train, or the run is over."""
        coordinator, began = self._coordinator, self._port.now()
        while coordinator.waits_for is not None and self._reason_to_stop() is None:
            self._performer.perform(coordinator.settle(now=self._port.now()))
            if coordinator.waits_for is None:
                break
            self._say("waiting")
            self._check_patience(began)
            self._port.wait(self._next_look(began))
            self._performer.deliver()
        if self._port.now() > began:
            self._record("waited", began=began)

    def _next_look(self, began: Micros) -> Micros | None:
        """How long to wait for a lane to end, at most. While a poll is under way, the time of the
        next one, which may be over already, does not count.
        """
        coordinator = self._coordinator
        if coordinator.waits_for != "global":
            return None
        patience_ends = Micros(began + micros(self._settings.bootstrap_timeout))
        return patience_ends if coordinator.polling else min(coordinator.next_poll, patience_ends)

    def _check_patience(self, began: Micros) -> None:
        patience = self._settings.bootstrap_timeout
        if self._coordinator.waits_for == "global" and self._port.now() - began >= micros(patience):
            raise TrainingError(
                f"node {self._node_id!r} found no global model on {self._repository.repo_id} "
                f"within diloco.bootstrap_timeout={patience} s; expected a master that runs there"
            )

    # -- the end -----------------------------------------------------------------------------------

    def _depart(self, reason: str) -> None:
        """Send what is unsent and say goodbye, each within `diloco.stop_timeout`."""
        self._say("stopping")
        self._record("node_stopping", reason=reason, local_step=self._coordinator.local_step)
        patience = micros(self._settings.stop_timeout)
        deadline = Micros(self._port.now() + patience)
        self._send_the_rest(deadline)
        self._performer.save_the_rest()
        depart = self._exchange.depart(last_local_step=self._coordinator.local_step)
        self._finish_lane(DEPART, depart, deadline=Micros(self._port.now() + patience))

    def _send_the_rest(self, deadline: Micros) -> None:
        """Hand over what is unsent; again after a refusal, while there is time."""
        refused = -1
        while refused < self._coordinator.tally.deltas_refused:
            self._await_upload(deadline)
            if self._coordinator.uploading or self._port.now() >= deadline:
                return
            refused = self._coordinator.tally.deltas_refused
            self._performer.perform(self._coordinator.finish())
            self._await_upload(deadline)

    def _await_upload(self, deadline: Micros) -> None:
        while self._coordinator.uploading and self._port.now() < deadline:
            self._port.wait(deadline)
            self._performer.deliver()

    def _give_back_the_name(self, error: BaseException) -> None:
        """A node that fails by a fault of its own says so, so that nobody waits for it; it may come
        back. Whoever is killed cannot, and a Hub that refuses needs no more requests.
        """
        silent = isinstance(error, NodeInUseError | HubError) or not isinstance(error, Exception)
        if silent or not self._has_name:
            return
        try:
            self._port.interrupt()  # a lane starts earlier than the step that failed had promised
            depart = self._exchange.depart(last_local_step=self._coordinator.local_step)
            deadline = Micros(self._port.now() + micros(FAREWELL_SECONDS))
            self._finish_lane(DEPART, depart, deadline)
        except Exception as trouble:
            logger.warning("%s could not say that it failed: %s", self._node_id, trouble)

    def _finish_lane(
        self,
        name: str,
        lane: Lane,
        deadline: Micros | None = None,
        *,
        while_wanted: bool = False,
    ) -> Any:
        """Run a lane and wait for its value; None when the deadline came first, or, with
        ``while_wanted``, the wish to stop. Other lanes may end meanwhile; at these moments nobody
        waits for what they found.
        """
        self._port.start(name, lane)
        while deadline is None or self._port.now() < deadline:
            if while_wanted and self._stop_asked is not None:
                return None
            for outcome in self._port.collect():
                if outcome.name == name:
                    if outcome.error is not None:
                        raise outcome.error
                    return outcome.value
            self._port.wait(deadline)
        logger.warning("%s: %s did not end within diloco.stop_timeout", self._node_id, name)
        return None

    # -- telling -----------------------------------------------------------------------------------

    def _say(self, state: str) -> None:
        self._account.say(
            state, now=self._port.now(), trainer=self._trainer, coordinator=self._coordinator
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
