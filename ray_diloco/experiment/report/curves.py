"""Losses over everything that they can be drawn over."""

from bisect import bisect_right
from dataclasses import dataclass

from ray_diloco.experiment.report.run_records import RunRecords
from ray_diloco.protocol.run import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A loss in nats per token, and where the run was. None: it never got there, as with a delta
    that was not merged.
    """

    loss: float
    at: int
    """Microseconds of the run's time."""
    outer_step: int | None
    tokens: int | None
    """Of all nodes, as merged."""
    delta_bytes: int | None
    """Of all deltas, as merged."""


def eval_points(run: RunRecords) -> list[Point]:
    """Held-out losses, each at the time at which its global was published."""
    published: dict[int, int] = {}
    for event in run.named("publication"):
        published.setdefault(event["outer_step"], event["at"])
    merged = _merged_bytes(run)
    points = []
    for event in run.named("evaluation"):
        step = event["outer_step"]
        at: int = published[step] if step in published else event["at"]
        if isinstance(event["loss"], int | float):
            points.append(
                Point(
                    loss=event["loss"],
                    at=at,
                    outer_step=step,
                    tokens=event["tokens_total"],
                    delta_bytes=merged.until(at),
                )
            )
    return sorted(points, key=lambda point: (point.at, point.outer_step or 0))


def train_points(run: RunRecords) -> dict[str, list[Point]]:
    """By node: the mean loss of the steps of each delta, when its upload began; the other places
    are those of the publication that merged it.
    """
    merging = {
        (delta["node"], delta["local_step"]): event
        for event in run.named("publication")
        for delta in event["deltas"]
    }
    merged = _merged_bytes(run)
    curves: dict[str, list[Point]] = {}
    for event in run.named("upload_started"):
        if not isinstance(event["loss"], int | float):
            continue
        by = merging.get((event["participant"], event["local_step"]))
        point = Point(
            loss=event["loss"],
            at=event["at"],
            outer_step=by["outer_step"] if by else None,
            tokens=by["tokens_total"] if by else None,
            delta_bytes=merged.until(by["at"]) if by else None,
        )
        curves.setdefault(event["participant"], []).append(point)
    return dict(sorted(curves.items(), key=lambda item: (len(item[0]), item[0])))


class _Merged:
    """Bytes of all deltas that were merged until a time."""

    def __init__(self, publications: list[Event]) -> None:
        self._times: list[int] = []
        self._sums: list[int] = [0]
        for event in publications:
            self._times.append(event["at"])
            new = sum(delta.get("bytes") or 0 for delta in event["deltas"])
            self._sums.append(self._sums[-1] + new)

    def until(self, at: int) -> int:
        return self._sums[bisect_right(self._times, at)]


def _merged_bytes(run: RunRecords) -> _Merged:
    return _Merged(run.named("publication"))
