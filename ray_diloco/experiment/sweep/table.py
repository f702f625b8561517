"""`results.parquet`: the rows that count, one column for each setting and each number."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.csv
import pyarrow.parquet

from ray_diloco.experiment.sweep.rows import Row

TABLE = "results.parquet"


def write_table(rows: Sequence[Row], path: Path) -> None:
    """Replace the file; a crash leaves the old one."""
    partial = path.with_name(f"{path.name}.partial")
    pyarrow.parquet.write_table(as_table(rows), partial)
    partial.replace(path)


def write_csv(rows: Sequence[Row], path: Path) -> None:
    pyarrow.csv.write_csv(as_table(rows), path)


def as_table(rows: Sequence[Row]) -> pyarrow.Table:
    """Settings and chosen groups under their own names, numbers under ``result.<name>``; what is
    nested is JSON. A column whose values are of several kinds is text.
    """
    flat = [_flat(row) for row in rows]
    names = list(dict.fromkeys(name for each in flat for name in each))
    columns = {name: _column([each.get(name) for each in flat]) for name in names}
    return pyarrow.table(columns)


def _flat(row: Row) -> dict[str, Any]:
    own = ("trial", "key", "attempt", "duration", "started_at", "folder", "error", "traceback_file")
    found: dict[str, Any] = {name: getattr(row, name) for name in own}
    found["status"] = row.status.value
    found |= {name: _cell(value) for name, value in (row.choices | row.overrides).items()}
    found |= {f"result.{name}": _cell(value) for name, value in row.numbers.items()}
    return found


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value


def _column(values: list[Any]) -> pyarrow.Array:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        values = [None if value is None else float(value) for value in values]
    elif len(kinds) > 1:
        values = [None if value is None else str(value) for value in values]
    return pyarrow.array(values)
