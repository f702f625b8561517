"""The table of a sweep: `results.jsonl`, a row for each attempt at a trial, written as it ends."""

import fcntl
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.events import as_json, cut_torn_line
from ray_diloco.experiment.legible import folder_fault, is_file_in, lines_of, understood
from ray_diloco.experiment.sweep.identity import matters

ROWS = "results.jsonl"


class Status(StrEnum):
    """How an attempt at a trial ended."""

    done = "done"
    pruned = "pruned"
    """Stopped early on purpose: it was worse than others at the same time."""
    failed = "failed"
    """It raised, or a participant failed."""
    killed = "killed"
    """Its process died."""
    timeout = "timeout"
    oom = "oom"
    """It ran out of memory."""
    invalid = "invalid"
    """Its configuration was refused; nothing was started for it."""
    interrupted = "interrupted"
    """The sweep was asked to end."""

    @property
    def settled(self) -> bool:
        """There is nothing to run again."""
        return self in (Status.done, Status.pruned)

    @property
    def went_wrong(self) -> bool:
        """It failed, one way or another, or could not be run."""
        return not self.settled and self is not Status.interrupted


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One attempt at one trial."""

    trial: int
    """Its number within the sweep, from 0."""
    key: str
    """What identifies it: the hash of its resolved configuration without paths."""
    attempt: int
    """From 1; the row of the highest one counts."""
    status: Status
    overrides: dict[str, Any] = field(default_factory=dict[str, Any])
    """Every setting and group that the command line or the sweep chose, with its value."""
    choices: dict[str, str] = field(default_factory=dict[str, str])
    """The file that was chosen of each group: ``{"cluster": "uniform"}``."""
    duration: float = 0.0
    """Real seconds from the start of the trial to its end, without the start of its process."""
    started_at: str = ""
    """ISO 8601 UTC."""
    folder: str | None = None
    """The run folder, relative to the sweep's; None when there is none."""
    error: str | None = None
    """What went wrong, in one line."""
    traceback_file: str | None = None
    """Relative to the sweep's folder; None when there is none."""
    numbers: dict[str, Any] = field(default_factory=dict[str, Any])
    """What result.json holds; empty when the trial left none."""

    @property
    def eval_loss(self) -> float | None:
        """Held-out loss of the final model, in nats per token."""
        value = self.numbers.get("eval_loss")
        return value if isinstance(value, int | float) else None

    @property
    def seed(self) -> int | None:
        """``run.seed``; None when the trial never ran."""
        seed = self.numbers.get("seed", self.overrides.get("run.seed"))
        return seed if isinstance(seed, int) else None


class RowBook:
    """Appends rows; each is on the disk when `append` returns. ConfigError when another process
    writes to the same sweep.
    """

    def __init__(self, sweep_dir: Path) -> None:
        sweep_dir.mkdir(parents=True, exist_ok=True)
        self._file = (sweep_dir / ROWS).open("ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise ConfigError(
                "hydra.sweep.dir", str(sweep_dir), "another process runs this sweep"
            ) from None
        cut_torn_line(sweep_dir / ROWS)

    def append(self, row: Row) -> None:
        self._file.write(as_json(asdict(row)).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "RowBook":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_rows(sweep_dir: Path) -> list[Row]:
    """All rows, in the order in which trials ended; a line that a crash cut short is left out.
    ConfigError when the folder holds no sweep, UsageError when its table is broken.
    """
    if not is_file_in(sweep_dir, ROWS):
        expected = f"{folder_fault(sweep_dir)}expected the folder of a sweep, with {ROWS}"
        raise ConfigError("sweep", str(sweep_dir), expected)
    path, holds = sweep_dir / ROWS, "a trial of a sweep on each line"
    with understood(path, holds=holds):
        return [_row(line) for line in lines_of(path, holds=holds, needs=_OF_A_ROW)]


def latest(rows: Iterable[Row]) -> list[Row]:
    """The row that counts of each trial, by trial number."""
    found: dict[str, Row] = {}
    for row in rows:
        if row.key not in found or row.attempt >= found[row.key].attempt:
            found[row.key] = row
    return sorted(found.values(), key=lambda row: row.trial)


def swept(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """The settings that differ between rows, each with its values in the order of their first use;
    without ``run.seed`` and what only says where a trial ran. One that a trial lacks is None there.
    """
    every = dict.fromkeys(name for row in rows for name in row.overrides)
    names = [name for name in every if name != "run.seed" and matters(name)]
    values = {name: _distinct([row.overrides.get(name) for row in rows]) for name in names}
    return {name: found for name, found in values.items() if len(found) > 1}


def _distinct(values: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


_OF_A_ROW = {
    **dict.fromkeys(("trial", "attempt"), int),
    **dict.fromkeys(("key", "status"), str),
    **dict.fromkeys(("overrides", "choices", "numbers"), dict),
}


def _row(plain: dict[str, Any]) -> Row:
    """A row as it was written; what a later version added is left out."""
    known = {each.name for each in fields(Row)}
    given: dict[str, Any] = {name: value for name, value in plain.items() if name in known}
    given["status"] = Status(given["status"])
    return Row(**given)
