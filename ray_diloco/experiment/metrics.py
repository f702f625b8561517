"""`metrics.parquet`: all events' numbers as one table, and TensorBoard files of the curves."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from torch.utils.tensorboard.writer import SummaryWriter

from ray_diloco.experiment.tracking.points import Point
from ray_diloco.protocol.clock import MICROS_PER_SECOND
from ray_diloco.protocol.run import Event

_Row = dict[str, Any]


def write_metrics(events: Iterable[Event], path: Path) -> None:
    """One row an event: ``event``, ``participant``, ``at_seconds``, and a column for each field
    that is a number, a text or a boolean; null where an event does not have it. A publication's
    deltas are rows of their own (event ``merged``, participant the node).
    """
    rows = [row for event in events for row in _rows(event)]
    names = ["event", "participant", "at_seconds"]
    names += sorted({name for row in rows for name in row} - set(names))
    table = pa.table({name: _column([row.get(name) for row in rows]) for name in names})
    partial = path.with_suffix(".partial")
    pq.write_table(table, partial)
    partial.replace(path)


class Curves:
    """TensorBoard files."""

    def __init__(self, folder: Path) -> None:
        self._writer = SummaryWriter(str(folder))

    def keep(self, points: Iterable[Point]) -> None:
        for point in points:
            self._writer.add_scalar(point.tag, point.value, point.step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def _rows(event: Event) -> list[_Row]:
    at = {"at_seconds": event["at"] / MICROS_PER_SECOND if "at" in event else None}
    row = at | {name: value for name, value in event.items() if _is_scalar(value) and name != "at"}
    rows = [row]
    for delta in event.get("deltas") or ():
        fields = {name: value for name, value in delta.items() if _is_scalar(value)}
        participant = fields.pop("node", None)
        rows.append(
            at
            | fields
            | {
                "event": "merged",
                "participant": participant,
                "outer_step": event.get("outer_step"),
            }
        )
    return rows


def _is_scalar(value: Any) -> bool:
    return isinstance(value, int | float | str | bool)


def _column(values: list[Any]) -> pa.Array:
    """Whole numbers stay whole; a column of mixed kinds becomes text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int}:
        return pa.array(values, pa.int64())
    if kinds <= {int, float}:
        return pa.array(values, pa.float64())
    if kinds <= {bool}:
        return pa.array(values, pa.bool_())
    return pa.array([None if value is None else str(value) for value in values], pa.string())
