"""What a node says of itself: its status while it runs, its report when it ends."""

import threading
from collections import deque
from dataclasses import asdict, dataclass, replace

from ray_diloco.hub.repository import NO_TRAFFIC, Traffic
from ray_diloco.node.coordinator import Coordinator
from ray_diloco.node.training import StepReport, Training
from ray_diloco.protocol.clock import MICROS_PER_SECOND, Micros
from ray_diloco.protocol.ranges import NO_STEPS
from ray_diloco.protocol.run import NodeReport, NodeStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Who trains, and on what: the part of a report that is known from the start."""

    node_id: str
    nonce: str = ""
    manifest: str = ""
    data_note: str | None = None


class Account:
    """Counts time and loss beside the training. `status` may be read from any thread."""

    def __init__(self, origin: Origin, *, window: int) -> None:
        """``window``: local steps over which the training loss is averaged."""
        self._origin = origin
        self._lock = threading.Lock()
        self._status = NodeStatus(node_id=origin.node_id)
        self._recent: deque[float] = deque(maxlen=max(1, window))
        self._began: Micros | None = None
        self._ended = Micros(0)
        self._compute = 0
        self._before = (0, 0)

    def known_as(self, nonce: str) -> None:
        """The incarnation that goes on may be an earlier one."""
        self._origin = replace(self._origin, nonce=nonce)

    def note_data(self, fast_forwarded: int) -> None:
        """Batches were drawn in vain to find a position again."""
        if fast_forwarded:
            note = f"fast-forwarded by {fast_forwarded} batches: the data cannot save its position"
            self._origin = replace(self._origin, data_note=note)

    @property
    def status(self) -> NodeStatus:
        with self._lock:
            return self._status

    def stepped(self, report: StepReport, *, began: Micros, ended: Micros) -> None:
        """A step took this stretch of the run's time."""
        if self._began is None:
            self._began = began
        self._ended = ended
        self._compute += ended - began
        if report.stepped:
            self._recent.append(report.loss)

    def say(
        self,
        state: str,
        *,
        now: Micros,
        trainer: Training,
        coordinator: Coordinator | None,
        traffic: Traffic = NO_TRAFFIC,
    ) -> None:
        """Renew the status."""
        local_step = coordinator.local_step if coordinator else trainer.local_step
        if self._began is None:
            self._before = (local_step, trainer.tokens)
        status = replace(
            self._status,
            nonce=self._origin.nonce,
            state=state,
            local_step=local_step,
            tokens=trainer.tokens,
            loss=self._mean_loss(),
            base_outer_step=coordinator.base_outer_step if coordinator else -1,
            deltas_rejected=len(coordinator.tally.rejected) if coordinator else 0,
            now=now,
            training_since=self._began,
            steps_before=self._before[0],
            tokens_before=self._before[1],
            **asdict(traffic),
        )
        with self._lock:
            self._status = status

    def report(self, *, reason: str, trainer: Training) -> NodeReport:
        """The end of training without any exchange."""
        origin = self._origin
        began = self._began if self._began is not None else self._ended
        return NodeReport(
            node_id=origin.node_id,
            nonce=origin.nonce,
            local_steps=trainer.local_step,
            tokens=trainer.tokens,
            train_loss=self._mean_loss(),
            stop_reason=reason,
            overflows=trainer.overflows,
            compute_seconds=self._compute / MICROS_PER_SECOND,
            total_seconds=(self._ended - began) / MICROS_PER_SECOND,
            data_note=origin.data_note,
            manifest=origin.manifest,
        )

    def exchange_report(
        self,
        *,
        reason: str,
        first_step: int,
        trainer: Training,
        coordinator: Coordinator,
        traffic: Traffic,
        mismatched: int,
    ) -> NodeReport:
        """The end of one incarnation of a node."""
        tally = coordinator.tally
        on_its_way = coordinator.job.cells if coordinator.job is not None else NO_STEPS
        return replace(
            self.report(reason=reason, trainer=trainer),
            local_steps=coordinator.local_step - first_step,
            first_step=first_step,
            fragments=coordinator.fragments,
            dropped=str(tally.dropped),
            lost=str(tally.lost),
            unsent=str(coordinator.unsent.steps.minus(on_its_way)),
            unresolved=str(on_its_way),
            rejected={str(covers): why for covers, why in tally.rejected.values() if covers},
            awaiting={str(step): str(covers) for step, covers in tally.awaiting.items()},
            skipped_boundaries=tally.skipped_boundaries,
            installs=tally.installs,
            mismatched_entries=mismatched,
            deltas_landed=tally.deltas_landed,
            deltas_refused=tally.deltas_refused,
            **asdict(traffic),
        )

    def _mean_loss(self) -> float | None:
        return sum(self._recent) / len(self._recent) if self._recent else None
