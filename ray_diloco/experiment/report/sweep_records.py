"""What a sweep folder holds, as far as the sweep has come."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from ray_diloco.experiment.legible import is_file_in
from ray_diloco.experiment.report.run_records import RunRecords, is_run_folder, read_run
from ray_diloco.experiment.run_files import CONFIG
from ray_diloco.experiment.sweep.effects import value_of
from ray_diloco.experiment.sweep.rows import ROWS, Row, latest, read_rows, swept
from ray_diloco.experiment.sweep.settings import SweepSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRecords:
    """``rows``: one for each trial, the attempt that counts."""

    folder: Path
    rows: list[Row]
    objective: str
    """The number of result.json that is compared; the least is the best."""

    @property
    def settings(self) -> dict[str, list[Any]]:
        """What was swept, with its values."""
        return swept(self.rows)

    @property
    def valued(self) -> list[tuple[float, Row]]:
        """Trials that have the objective, the best first."""
        found = [(value_of(row, self.objective), row) for row in self.rows]
        return sorted(
            ((value, row) for value, row in found if value is not None), key=lambda pair: pair[0]
        )

    def run_of(self, row: Row) -> RunRecords | None:
        """A trial's own records; None when its folder is gone."""
        if row.folder is None or not is_run_folder(self.folder / row.folder):
            return None
        return read_run(self.folder / row.folder)


def is_sweep_folder(folder: Path) -> bool:
    return is_file_in(folder, ROWS)


def read_sweep(folder: Path) -> SweepRecords:
    """ConfigError when the folder holds no sweep."""
    rows = latest(read_rows(folder))
    return SweepRecords(folder=folder, rows=rows, objective=_objective(folder, rows))


def _objective(folder: Path, rows: Iterable[Row]) -> str:
    """As the first trial whose configuration is there says."""
    for row in rows:
        path = folder / (row.folder or "") / CONFIG
        try:
            found = OmegaConf.select(OmegaConf.load(path), "sweep.objective")
        except (OSError, OmegaConfBaseException, YAMLError):
            continue
        if isinstance(found, str):
            return found
    return SweepSettings().objective
