"""What a run comes to. Its numbers are made in `sessions` and `session`."""

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go
    import pyarrow as pa

_PACKAGES = ("ray-diloco", "torch", "ray", "huggingface_hub", "safetensors", "hydra-core", "numpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The end of a run. ``numbers`` is what result.json holds; ``status`` is done, stopped (asked
    to end early) or failed.
    """

    run_dir: Path
    status: str
    numbers: dict[str, Any]

    @property
    def folder(self) -> Path:
        """Everything that the run left."""
        return self.run_dir

    @property
    def eval_loss(self) -> float | None:
        """Held-out loss of the final model, in nats per token; None when it was not evaluated."""
        return self.numbers["eval_loss"]

    @property
    def exit_code(self) -> int:
        """For the command line."""
        return {"done": 0, "stopped": 130}.get(self.status, 1)

    def table(self, event: str | None = None) -> "pa.Table":
        """What happened, from metrics.parquet: a row an event with ``event``, ``participant``,
        ``at_seconds`` (of the run's time) and the event's numbers. ``event``: only events of this
        name, such as evaluation or merged, and only the columns that they have.
        """
        from ray_diloco.experiment.frames import events_table

        return events_table(self.run_dir, event)

    def frame(self, event: str | None = None) -> "pd.DataFrame":
        """The same as a pandas frame. UsageError without pandas."""
        from ray_diloco.experiment.frames import as_frame

        return as_frame(self.table(event))

    def figures(self) -> "dict[str, go.Figure]":
        """Those of the report, for plotly: loss, timeline, staleness, utilisation, traffic."""
        from ray_diloco.experiment.report.gallery import run_gallery

        return run_gallery(self.run_dir)


def environment() -> dict[str, Any]:
    """Versions of what the numbers may depend on."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        **{name: found for name in _PACKAGES if (found := _version(name)) is not None},
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
