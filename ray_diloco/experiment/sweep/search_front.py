"""The answer of a search for several objectives: the points that no other one beats in all."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ray_diloco.experiment.sweep.answer import short, value_text
from ray_diloco.experiment.sweep.effects import points, value_of
from ray_diloco.experiment.sweep.rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Compromise:
    """``values``: of each objective, the mean over the seeds of the point."""

    settings: dict[str, Any]
    trials: tuple[int, ...]
    values: tuple[float, ...]


def front(rows: Sequence[Row], objectives: Sequence[str]) -> list[Compromise]:
    """The Pareto front, by the first objective. Points that lack one are left out."""
    every = compromises(rows, objectives)
    return [each for each in every if not any(beats(other.values, each.values) for other in every)]


def compromises(rows: Sequence[Row], objectives: Sequence[str]) -> list[Compromise]:
    """Every point with all objectives, the least first one first."""
    found: list[Compromise] = []
    for point in points(rows, objectives[0]):
        columns = [[value_of(row, name) for row in point.rows] for name in objectives]
        known = [[value for value in each if value is not None] for each in columns]
        if all(known):
            found.append(
                Compromise(
                    settings=point.settings,
                    trials=tuple(row.trial for row in point.rows),
                    values=tuple(fmean(each) for each in known),
                )
            )
    return found


def beats(these: Sequence[float], those: Sequence[float]) -> bool:
    """Nowhere worse, and somewhere better."""
    pairs = list(zip(these, those, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def print_front(rows: Sequence[Row], objectives: Sequence[str], console: Console) -> None:
    """Nothing when no point has all objectives."""
    found = front(rows, objectives)
    if not found:
        return
    console.print(f"\n[bold]best for {escape(' and '.join(objectives))}[/]", soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in found[0].settings:
        table.add_column(escape(short(name, found[0].settings)))
    for name in (*objectives, "trial"):
        table.add_column(escape(name), justify="right")
    for each in found:
        cells = [value_text(value) for value in (*each.settings.values(), *each.values)]
        cells.append(",".join(str(trial) for trial in each.trials))
        table.add_row(*(escape(cell) for cell in cells))
    console.print(table)
