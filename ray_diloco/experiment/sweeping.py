"""What a program calls instead of `ray-diloco -m`, and what a sweep has left."""

import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from ray_diloco.errors import ConfigError, UsageError
from ray_diloco.experiment.api import as_words, load_results, new_folder
from ray_diloco.experiment.frames import as_frame
from ray_diloco.experiment.reading import refuse_token_words
from ray_diloco.experiment.result import Result
from ray_diloco.experiment.sweep.rows import ROWS, Row, Status, latest, read_rows
from ray_diloco.experiment.sweep.table import as_table

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Many runs in one folder."""

    folder: Path

    @property
    def rows(self) -> list[Row]:
        """One for each trial, failed ones too: what was set, how it ended, its numbers."""
        return latest(read_rows(self.folder))

    @property
    def results(self) -> list[Result]:
        """Of the trials that left one, in the order of their numbers."""
        return load_results(self.folder)

    def table(self) -> pa.Table:
        """A row a trial: what was set under its own name, numbers under ``result.<name>``."""
        return as_table(self.rows)

    def frame(self) -> "pd.DataFrame":
        """The same as a pandas frame. UsageError without pandas."""
        return as_frame(self.table())

    def figures(self) -> "dict[str, go.Figure]":
        """Those of the report, for plotly: heat maps, best trials, the effect of each setting."""
        from ray_diloco.experiment.report.gallery import sweep_gallery

        return sweep_gallery(self.folder)


def sweep(overrides: Iterable[str], *, folder: str | Path | None = None) -> Sweep:
    """Run a trial for each combination of the values that ``overrides`` list
    (``["diloco.outer_lr=0.3,0.7", "run.seed=0,1"]``), as `ray-diloco -m` does, in a process of its
    own. ``folder``: the sweep folder; None: a new one under ``multirun``.

    Trials that fail are rows of the sweep. UsageError when none of them can be run at all.
    """
    words = as_words(overrides)
    refuse_token_words(words)
    target = Path(folder) if folder is not None else new_folder("multirun")
    command = [sys.executable, "-m", "ray_diloco.experiment.main", "-m", *words]
    ended = subprocess.run(
        [*command, f"hydra.sweep.dir={_quoted(target)}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if not (target / ROWS).is_file():
        told = ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"]
        raise UsageError(told[-1].removeprefix("ray-diloco: "))
    found = load_sweep(target)
    if all(row.status is Status.invalid for row in found.rows):
        raise UsageError(found.rows[0].error if found.rows else "there is nothing to run")
    return found


def load_sweep(folder: str | Path) -> Sweep:
    """ConfigError when the folder holds no sweep."""
    found = Path(folder).expanduser().absolute()
    if not (found / ROWS).is_file():
        raise ConfigError("folder", str(folder), "expected the folder of a sweep")
    return Sweep(folder=found)


def _quoted(path: Path) -> str:
    """As one value in the words of the command line."""
    text = str(path.absolute()).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"
