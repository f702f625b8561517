"""Carries out what the coordinator decides, and tells it what the lanes have done."""

import logging
from collections import deque

from ray_diloco.errors import NodeInUseError, RayDilocoError, TrainingError
from ray_diloco.node.actions import (
    Action,
    AdvanceBaseline,
    Fail,
    FoldBack,
    InstallGlobal,
    Job,
    Record,
    ResetOptimizer,
    ReturnToBaseline,
    StartPoll,
    StartUpload,
)
from ray_diloco.node.coordinator import Coordinator
from ray_diloco.node.exchange import Exchange
from ray_diloco.node.polling import Polled
from ray_diloco.node.saving import Saver
from ray_diloco.node.training import Training
from ray_diloco.node.uploading import Uploaded
from ray_diloco.node.weights import Weights
from ray_diloco.protocol.clock import LaneOutcome, Port
from ray_diloco.protocol.run import Recorder
from ray_diloco.tensors.dtypes import State

logger = logging.getLogger(__name__)

UPLOAD, POLL, BEAT = "upload", "poll", "beat"


class Performer:
    """The hands of one incarnation of a node; all of it runs on the training thread."""

    def __init__(
        self,
        *,
        node_id: str,
        coordinator: Coordinator,
        trainer: Training,
        weights: Weights,
        exchange: Exchange,
        saver: Saver,
        port: Port,
        record: Recorder,
    ) -> None:
        self._node_id = node_id
        self._coordinator = coordinator
        self._trainer = trainer
        self._weights = weights
        self._exchange = exchange
        self._saver = saver
        self._port = port
        self._record = record
        self._encoded: deque[None] = deque()
        self._beating = False
        self._fetched: State | None = None

    def deliver(self) -> None:
        """Tell the coordinator what the lanes have done since the last look. Raises what they
        raised.
        """
        if self._encoded:
            self._encoded.clear()
            self.perform(self._coordinator.encoded(self._exchange.last_number))
        for outcome in self._port.collect():
            self._take(outcome)

    def save_when_due(self) -> None:
        """A checkpoint between two boundaries."""
        if self._coordinator.keepable and self._saver.save_when_due(self._coordinator.standing()):
            self._record("checkpoint", local_step=self._coordinator.local_step)

    def save_the_rest(self) -> None:
        """A checkpoint of what could not be sent before the end."""
        coordinator = self._coordinator
        if coordinator.unsent and coordinator.keepable and self._saver.save(coordinator.standing()):
            self._record("checkpoint", local_step=coordinator.local_step)

    def resend(self, job: Job) -> None:
        """Find out what became of a job from before a restart, and send it if it is nowhere."""
        self._record("upload_resumed", local_step=job.local_step, covers=str(job.work.steps))
        self._port.start(UPLOAD, self._exchange.resend(job.sent_as))

    def perform(self, actions: list[Action]) -> None:
        """Carry out actions in order. TrainingError when the coordinator gives up, NodeInUseError
        when it does because another process has the name.
        """
        for action in actions:
            match action:
                case StartUpload():
                    self._start_upload(action)
                case StartPoll():
                    self._start_poll(action)
                case InstallGlobal():
                    self._install(action)
                case AdvanceBaseline() | FoldBack() | ReturnToBaseline():
                    self._move(action)
                case ResetOptimizer():
                    self._trainer.reset_optimizer()
                case Record() | Fail():
                    self._tell(action)

    @property
    def beating(self) -> bool:
        """A sign of life is on its way."""
        return self._beating

    def beat_when_due(self) -> None:
        """Show that the node lives when a round takes long."""
        due = self._port.now() >= self._exchange.beat_due
        if due and not self._beating and not self._coordinator.uploading:
            self._beating = True
            self._port.start(BEAT, self._exchange.beat())

    def _tell(self, action: Record | Fail) -> None:
        if isinstance(action, Fail):
            kind = NodeInUseError if action.fenced else TrainingError
            raise kind(f"node {self._node_id!r}: {action.message}")
        if action.event == "delta_rejected":
            logger.warning("%s: the master rejected a delta: %s", self._node_id, action.fields)
        self._record(action.event, **action.fields)

    def _start_upload(self, action: StartUpload) -> None:
        self._weights.take_snapshot()
        job = action.job
        self._record(
            "upload_started",
            local_step=job.local_step,
            covers=str(job.work.steps),
            base_outer_step=job.base_outer_step,
            tokens=job.work.tokens,
            loss=job.work.mean_loss,
            final=job.final,
            **({} if job.fragment is None else {"fragment": job.fragment}),
        )
        keep = self._saver.of_job(self._coordinator.standing(), resets=action.resets)
        lane = self._exchange.upload(job, encoded=lambda: self._encoded.append(None), keep=keep)
        self._port.start(UPLOAD, lane)

    def _start_poll(self, action: StartPoll) -> None:
        seen, have = self._coordinator.known, self._coordinator.seen[1]
        if action.every is None:
            lane = self._exchange.poll(seen=seen, anew=action.anew, have=have)
        else:
            lane = self._exchange.poll_until_new(seen=seen, every=action.every, have=have)
        self._port.start(POLL, lane)

    def _move(self, action: AdvanceBaseline | FoldBack | ReturnToBaseline) -> None:
        match action:
            case AdvanceBaseline():
                self._weights.advance(self._exchange.delta_file)
            case FoldBack():
                self._weights.fold_back(self._exchange.delta_file)
            case ReturnToBaseline():
                self._weights.return_to_baseline()

    def _install(self, action: InstallGlobal) -> None:
        state, self._fetched = self._fetched, None
        if state is None:
            raise RayDilocoError("a global is to be installed that was not fetched")
        self._weights.install(state, action.policy, action.fragments)
        self._record(
            "install",
            outer_step=action.card.outer_step,
            policy=action.policy,
            local_step=self._coordinator.local_step,
            **({} if action.fragments is None else {"fragments": list(action.fragments)}),
        )

    def _take(self, outcome: LaneOutcome) -> None:
        if outcome.error is not None:
            raise outcome.error
        match outcome.name, outcome.value:
            case "upload", Uploaded() as uploaded:
                self._encoded.clear()
                self._take_upload(uploaded)
            case "poll", Polled() as polled:
                self._take_poll(polled)
            case "beat", _:
                self._beating = False
            case name, other:
                raise RayDilocoError(f"lane {name!r} gave {other!r}")

    def _take_upload(self, uploaded: Uploaded) -> None:
        coordinator = self._coordinator
        match uploaded.outcome:
            case "landed":
                self.perform(self._written() + coordinator.landed())
            case "refused":
                logger.warning("%s: delta refused: %s", self._node_id, uploaded.reason)
                self.perform(self._written() + coordinator.refused(uploaded.reason))
            case "zero" | "not finite" as verdict:
                self.perform(coordinator.spoiled(verdict))

    def _written(self) -> list[Action]:
        return self._coordinator.encoded(self._exchange.last_number)

    def _take_poll(self, polled: Polled) -> None:
        if polled.refused is not None:
            self._record("global_refused", reason=polled.refused)
            logger.warning("%s: global refused: %s", self._node_id, polled.refused)
        if polled.card is not None and polled.state is not None:
            self._fetched = polled.state
            part = {} if polled.fragments is None else {"fragments": list(polled.fragments)}
            card, began = polled.card, polled.began
            self._record("global_fetched", outer_step=card.outer_step, began=began, **part)
            self.perform(self._coordinator.fetched(card, whole=polled.fragments is None))
        else:
            self.perform(self._coordinator.nothing_new(polled.card))
