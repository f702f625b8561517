"""What a run tells those who watch it: the names of its metrics, and where a status has each."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from ray_diloco.protocol.run import MasterStatus, NodeStatus

Status = TypeVar("Status", NodeStatus, MasterStatus)

LABELS = ("run", "participant")
"""Of every metric: the run's id, and a node's id or the master's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric(Generic[Status]):
    """A counter holds what this process has done since it started, a gauge how things stand."""

    name: str
    """Prometheus shows it with ``ray_`` in front, a counter with ``_total`` behind."""
    kind: Literal["counter", "gauge"]
    means: str
    value: Callable[[Status], float | None]
    """None: not known yet."""

    @property
    def shown_as(self) -> str:
        """The name that Prometheus has for it."""
        return f"ray_{self.name}{'_total' if self.kind == 'counter' else ''}"


_TRAFFIC: tuple[Metric[Any], ...] = (
    Metric(
        name="diloco_bytes_up",
        kind="counter",
        means="Payload bytes that a participant sent to the repository.",
        value=lambda status: status.bytes_up,
    ),
    Metric(
        name="diloco_bytes_down",
        kind="counter",
        means="Payload bytes that a participant fetched from the repository.",
        value=lambda status: status.bytes_down,
    ),
    Metric(
        name="diloco_commits",
        kind="counter",
        means="Commits that a participant made.",
        value=lambda status: status.commits,
    ),
)
"""Of nodes and masters alike."""

NODE_METRICS: tuple[Metric[NodeStatus], ...] = (
    Metric(
        name="diloco_tokens",
        kind="counter",
        means="Tokens that a node trained on.",
        value=lambda status: status.tokens - status.tokens_before,
    ),
    Metric(
        name="diloco_local_steps",
        kind="counter",
        means="Local steps that a node took.",
        value=lambda status: status.local_step - status.steps_before,
    ),
    Metric(
        name="diloco_train_loss",
        kind="gauge",
        means="Mean training loss of a node since its last boundary, nats per token.",
        value=lambda status: status.loss,
    ),
    Metric(
        name="diloco_base_outer_step",
        kind="gauge",
        means="Outer step of the global that a node trains on; -1 before its first.",
        value=lambda status: status.base_outer_step,
    ),
    Metric(
        name="diloco_own_deltas_rejected",
        kind="gauge",
        means="Deltas of a node that the master rejected, as far as the node has heard.",
        value=lambda status: status.deltas_rejected,
    ),
    *_TRAFFIC,
)

MASTER_METRICS: tuple[Metric[MasterStatus], ...] = (
    Metric(
        name="diloco_outer_step",
        kind="gauge",
        means="Outer step of the newest global; -1 before the first.",
        value=lambda status: status.outer_step,
    ),
    Metric(
        name="diloco_eval_loss",
        kind="gauge",
        means="Held-out loss of the newest global that was evaluated, nats per token.",
        value=lambda status: status.eval_loss,
    ),
    Metric(
        name="diloco_tokens_merged",
        kind="gauge",
        means="Tokens in the newest global, of all nodes since the start of the run.",
        value=lambda status: status.tokens_total,
    ),
    Metric(
        name="diloco_staleness",
        kind="gauge",
        means="Mean staleness of the deltas that were merged last, outer steps.",
        value=lambda status: status.staleness,
    ),
    Metric(
        name="diloco_deltas_merged",
        kind="counter",
        means="Deltas that the master merged.",
        value=lambda status: status.deltas_merged,
    ),
    Metric(
        name="diloco_deltas_rejected",
        kind="counter",
        means="Deltas that the master rejected.",
        value=lambda status: status.deltas_rejected,
    ),
    *_TRAFFIC,
)


class CounterLike(Protocol):
    """As `ray.util.metrics.Counter`."""

    def inc(self, value: float, tags: dict[str, str]) -> None: ...


class GaugeLike(Protocol):
    """As `ray.util.metrics.Gauge`."""

    def set(self, value: float, tags: dict[str, str]) -> None: ...


class Meter(Generic[Status]):
    """Shows the statuses of one participant as metrics. `show` may be called from any thread."""

    def __init__(
        self,
        metrics: Sequence[Metric[Status]],
        *,
        labels: Mapping[str, str],
        counter: Callable[..., CounterLike],
        gauge: Callable[..., GaugeLike],
    ) -> None:
        """``counter``, ``gauge``: make one from ``name``, ``description`` and ``tag_keys``."""
        self._metrics = metrics
        self._labels = dict(labels)
        self._lock = threading.Lock()
        self._shown: dict[str, float] = {}
        known = tuple(labels)
        self._counters = {
            each.name: counter(each.name, description=each.means, tag_keys=known)
            for each in metrics
            if each.kind == "counter"
        }
        self._gauges = {
            each.name: gauge(each.name, description=each.means, tag_keys=known)
            for each in metrics
            if each.kind == "gauge"
        }

    def show(self, status: Status) -> None:
        with self._lock:
            for metric in self._metrics:
                value = metric.value(status)
                if value is None:
                    continue
                if metric.kind == "gauge":
                    self._gauges[metric.name].set(value, self._labels)
                else:
                    self._count_up(metric.name, value)

    def _count_up(self, name: str, value: float) -> None:
        """A counter takes only what is new."""
        new = value - self._shown.get(name, 0.0)
        if new > 0:
            self._counters[name].inc(new, self._labels)
            self._shown[name] = value
