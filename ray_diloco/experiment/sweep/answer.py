"""What a sweep leaves to read: its best trials, what each setting did, and what went wrong."""

from collections.abc import Collection, Sequence
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ray_diloco.experiment.sweep.effects import (
    Effect,
    Point,
    best_per_cluster,
    effects,
    points,
    value_of,
)
from ray_diloco.experiment.sweep.rows import Row, swept

MOST_FAILURES = 20
"""Shown one by one; the table has all."""
LEGEND = (
    "difference: from the first value, between trials that are equal in all else; "
    "+-: its standard error"
)


def best_of(rows: Sequence[Row], objective: str) -> Row | None:
    """The trial with the least objective; None when none has one."""
    valued = [(value, row) for row in rows if (value := value_of(row, objective)) is not None]
    return min(valued, key=lambda pair: pair[0])[1] if valued else None


def print_answer(rows: Sequence[Row], objective: str, shown: int, console: Console) -> None:
    """``rows``: those that count, one for each trial."""
    found = points(rows, objective)
    if found:
        what = "points" if _repeated(found) else "trials"
        several = f", {min(shown, len(found))} of {len(found)}" if len(found) > 1 else ""
        _print(f"best {what} (the least {objective} first{several})", console)
        console.print(points_table(found[:shown], objective))
    _print_effects(rows, objective, shown, console)
    clusters = best_per_cluster(rows, objective)
    if len(clusters) > 1:
        _print("best setting for each cluster", console)
        console.print(clusters_table(clusters, objective))
    print_failures(rows, console)


def _print_effects(rows: Sequence[Row], objective: str, shown: int, console: Console) -> None:
    """Of each setting; but of values that were searched, each was tried once."""
    told = [
        effect
        for effect in effects(rows, objective)
        if len(effect.levels) <= shown or any(level.trials > 1 for level in effect.levels)
    ]
    if told:
        console.print(f"\n{LEGEND}", style="dim", highlight=False)
    for effect in told:
        _print(f"effect of {effect.setting}", console)
        console.print(effect_table(effect, objective))


def print_comparison(
    pairs: Sequence[tuple[Row, Row, float]], objective: str, console: Console
) -> None:
    """Trials of two sweeps with the same overrides, and the mean of their differences."""
    _print(f"{objective} of {len(pairs)} trials in both", console)
    console.print(_comparison_table(pairs, objective))


def points_table(found: Sequence[Point], objective: str) -> Table:
    """One line a point, mean and spread over its seeds."""
    spread, table = _repeated(found), _table()
    for name in found[0].settings:
        table.add_column(short(name, found[0].settings))
    table.add_column(objective, justify="right")
    if spread:
        table.add_column("spread", justify="right")
        table.add_column("seeds", justify="right")
    table.add_column("trial", justify="right")
    for point in found:
        cells = [value_text(value) for value in point.settings.values()] + [value_text(point.mean)]
        if spread:
            cells += ["-" if point.spread is None else f"{point.spread:.2g}"]
            cells += [str(len(point.values))]
        cells.append(_trials_text(point.rows))
        table.add_row(*(escape(cell) for cell in cells))
    return table


def effect_table(effect: Effect, objective: str) -> Table:
    """One line a value: its mean, and its paired difference from the first value."""
    table = _table()
    for name in ("value", f"mean {objective}", "difference", "+-", "pairs", "trials"):
        table.add_column(name, justify="left" if name == "value" else "right")
    for level in effect.levels:
        table.add_row(
            escape(value_text(level.value)),
            value_text(level.mean),
            "" if level.difference is None else f"{level.difference:+.4f}",
            "" if level.error is None else f"{level.error:.2g}",
            str(level.pairs or ""),
            str(level.trials),
        )
    return table


def clusters_table(clusters: dict[str, Point], objective: str) -> Table:
    """The best point on each cluster."""
    names = [name for name in next(iter(clusters.values())).settings if name != "cluster"]
    table = _table()
    for name in ("cluster", *names):
        table.add_column(short(name, names))
    for name in (objective, "trial"):
        table.add_column(name, justify="right")
    for cluster, point in clusters.items():
        cells = [cluster, *(value_text(point.settings[name]) for name in names)]
        cells += [value_text(point.mean), _trials_text(point.rows)]
        table.add_row(*(escape(cell) for cell in cells))
    return table


def _comparison_table(pairs: Sequence[tuple[Row, Row, float]], objective: str) -> Table:
    table = _table()
    names = swept([ours for ours, _, _ in pairs])
    for name in ("point", "this", "other", "difference"):
        table.add_column(name, justify="left" if name == "point" else "right")
    for ours, theirs, difference in pairs:
        values = [value_text(row.numbers[objective]) for row in (ours, theirs)]
        point = point_text(ours, names) or f"trial {ours.trial}"
        table.add_row(escape(point), *values, f"{difference:+.4f}")
    if len(pairs) > 1:
        table.add_row("mean", "", "", f"{fmean(each[2] for each in pairs):+.4f}")
    return table


def print_failures(rows: Sequence[Row], console: Console) -> None:
    """Each trial that did not end well, and why; those that were interrupted in one line."""
    bad = [row for row in rows if row.status.went_wrong]
    names = swept(rows)
    if bad:
        _print("did not end well", console)
    for row in bad[:MOST_FAILURES]:
        where = f" ({row.traceback_file})" if row.traceback_file else ""
        line = f"trial {row.trial} {row.status.value}: {point_text(row, names)}: {row.error}{where}"
        console.print(f"[bold red]{escape(line)}[/]", soft_wrap=True, highlight=False)
    if len(bad) > MOST_FAILURES:
        console.print(f"and {len(bad) - MOST_FAILURES} more", style="red")


def point_text(row: Row, names: Collection[str]) -> str:
    """The row's settings of these names, as on a command line; its seed when it was given."""
    told = [*(name for name in names if name in row.overrides)]
    told += ["run.seed"] if "run.seed" in row.overrides and "run.seed" not in told else []
    return " ".join(f"{name}={value_text(row.overrides[name])}" for name in told)


def best_text(rows: Sequence[Row], objective: str) -> str | None:
    """The answer in one line; None when no trial has the objective."""
    found = points(rows, objective)
    if not found:
        return None
    best = found[0]
    many = len(best.rows) > 1
    told = [f"{name}={value_text(value)}" for name, value in best.settings.items()]
    seeds = f" over {len(best.rows)} seeds" if many else ""
    where = f"trial{'s' if many else ''} {_trials_text(best.rows)}"
    return f"{objective} {value_text(best.mean)}{seeds} in {where}: {' '.join(told)}".rstrip(": ")


def _trials_text(rows: Sequence[Row]) -> str:
    return ",".join(str(row.trial) for row in rows)


def value_text(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.5g}"
        case _:
            return str(value)


def short(name: str, beside: Collection[str]) -> str:
    """The last word of a dotted name, where no other one ends the same way."""
    last = name.rsplit(".", 1)[-1]
    return last if sum(each.rsplit(".", 1)[-1] == last for each in beside) == 1 else name


def _repeated(found: Sequence[Point]) -> bool:
    """Points were run with several seeds."""
    return any(point.spread is not None for point in found)


def _print(title: str, console: Console) -> None:
    console.print(f"\n[bold]{escape(title)}[/]", soft_wrap=True)


def _table() -> Table:
    return Table(box=None, pad_edge=False, header_style="bold")
