"""How a sweep stands, in one line: trials done, running and failed, the best so far, time left."""

from collections.abc import Collection
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from ray_diloco.experiment.schema import ProgressKind
from ray_diloco.experiment.sweep.answer import best_of, point_text, value_text
from ray_diloco.experiment.sweep.rows import Row, Status
from ray_diloco.protocol.clock import MICROS_PER_SECOND, Clock, Micros


@dataclass(slots=True, kw_only=True)
class Standing:
    """What is known of a sweep that runs. ``total``: trials that it will have; None: not known."""

    total: int | None
    objective: str
    names: tuple[str, ...] = ()
    """Settings that differ between trials."""
    kept: int = 0
    """Trials that an earlier sweep has settled."""
    rows: list[Row] = field(default_factory=list[Row])
    """In the order in which they ended; those that were kept are among them."""
    running: int = 0

    def add(self, row: Row) -> None:
        self.rows.append(row)

    def keep(self, row: Row) -> None:
        """One that an earlier sweep has settled."""
        self.kept += 1
        self.rows.append(row)

    @property
    def ended(self) -> int:
        return len({row.key for row in self.rows})

    @property
    def done(self) -> int:
        return sum(status.settled for status in self._last().values())

    @property
    def bad(self) -> int:
        return sum(status.went_wrong for status in self._last().values())

    def _last(self) -> dict[str, Status]:
        return {row.key: row.status for row in self.rows}


def standing_line(standing: Standing, seconds: float) -> str:
    """``seconds``: since the sweep began."""
    total = "" if standing.total is None else f"/{standing.total}"
    parts = [f"{standing.done}{total} done", f"{standing.running} running"]
    if standing.bad:
        parts.append(f"{standing.bad} failed")
    best = best_of(standing.rows, standing.objective)
    if best is not None:
        value = value_text(best.numbers[standing.objective])
        parts.append(f"best {standing.objective} {value} in trial {best.trial}")
    left = seconds_left(standing, seconds)
    if left is not None:
        parts.append(f"about {_clock_text(left)} left")
    return f"[{_clock_text(seconds)}] {', '.join(parts)}"


def seconds_left(standing: Standing, seconds: float) -> float | None:
    """At the pace so far; None before the first trial has ended, or when the total is not known."""
    ended = standing.ended - standing.kept
    if standing.total is None or ended <= 0:
        return None
    return max(standing.total - standing.ended, 0) * seconds / ended


def row_line(row: Row, names: Collection[str], objective: str) -> str:
    """How one trial ended. ``names``: the settings to tell."""
    value = row.numbers.get(objective)
    good = row.status.settled and value is not None
    told = f"{objective} {value_text(value)}" if good else row.error
    point = point_text(row, names)
    again = f", attempt {row.attempt}" if row.attempt > 1 else ""
    what = f"trial {row.trial}{again} {row.status.value} in {row.duration:.1f} s"
    return f"{what}: {point}{' -> ' if point else ''}{told or ''}".rstrip(": ")


class Board:
    """Shows a standing: a live line on a terminal, a line for each trial that ended elsewhere."""

    def __init__(self, kind: ProgressKind, console: Console, clock: Clock) -> None:
        live = kind is ProgressKind.live or (kind is ProgressKind.auto and console.is_terminal)
        self._quiet = kind is ProgressKind.none
        self._console = console
        self._clock = clock
        self._began: Micros = clock.now()
        self._live = Live(console=console, auto_refresh=False, transient=True) if live else None
        if self._live is not None:
            self._live.start()

    def show(self, standing: Standing) -> None:
        if self._live is not None:
            self._live.update(Text(standing_line(standing, self._seconds())), refresh=True)

    def ended(self, row: Row, standing: Standing) -> None:
        """A trial has ended; the row is in the standing already."""
        if self._quiet:
            return
        line = row_line(row, standing.names, standing.objective)
        if self._live is None:
            line = f"{line} {standing_line(standing, self._seconds())}"
        self.note(line)

    def note(self, text: str) -> None:
        """One line that stays."""
        if not self._quiet:
            self._console.print(escape(text), soft_wrap=True, highlight=False)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()

    def _seconds(self) -> float:
        return (self._clock.now() - self._began) / MICROS_PER_SECOND


def _clock_text(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"
