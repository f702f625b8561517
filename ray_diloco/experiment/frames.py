"""A run's records as tables."""

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ray_diloco.errors import ConfigError, UsageError
from ray_diloco.experiment.legible import understood
from ray_diloco.experiment.run_files import METRICS

if TYPE_CHECKING:
    import pandas as pd


def events_table(run_dir: Path, event: str | None) -> pa.Table:
    """metrics.parquet, or its rows of one event without the columns that are null in all of them.
    ConfigError when there is no such event, or no such file.
    """
    path = run_dir / METRICS
    if not path.is_file():
        raise ConfigError("folder", str(run_dir), f"expected {METRICS} of a run that has ended")
    with understood(path, holds="the numbers of a run's events, as Parquet"):
        table = pq.read_table(path)
    if event is None:
        return table
    rows = table.filter(pc.field("event") == event)
    if rows.num_rows == 0:
        known = ", ".join(sorted(set(table["event"].to_pylist())))
        raise ConfigError("event", event, f"expected one of {known}")
    return rows.select([name for name in rows.column_names if rows[name].null_count < len(rows)])


def as_frame(table: pa.Table) -> "pd.DataFrame":
    """UsageError when pandas is not installed."""
    try:
        return table.to_pandas()
    except ModuleNotFoundError:
        raise UsageError("a frame needs pandas: pip install ray-diloco[notebook]") from None
