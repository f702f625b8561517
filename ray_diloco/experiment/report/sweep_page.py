"""The page of a sweep."""

from collections.abc import Iterator
from html import escape
from typing import Any

from ray_diloco.experiment.report.document import (
    Document,
    columns,
    facts_list,
    link,
    section,
    table,
)
from ray_diloco.experiment.report.facts import duration
from ray_diloco.experiment.report.run_records import RunRecords
from ray_diloco.experiment.report.sweep_figures import (
    best_figure,
    effect_figure,
    heat_axes,
    heat_maps,
    pareto_figure,
)
from ray_diloco.experiment.report.sweep_records import SweepRecords
from ray_diloco.experiment.report.switch import axis_switch
from ray_diloco.experiment.run_files import REPORT
from ray_diloco.experiment.sweep.answer import point_text, short
from ray_diloco.experiment.sweep.effects import Effect, effects, value_of
from ray_diloco.experiment.sweep.rows import Row, Status

MOST_CURVES = 8
MOST_MAPS = 24
MOST_EFFECTS = 8


def sweep_page(sweep: SweepRecords) -> Document:
    """Everything of one sweep; what it does not have is left out."""
    page = Document(title=f"sweep {sweep.folder.absolute().name}")
    page.add(f"<h1>{escape(page.title)}</h1>", facts_list(_facts(sweep)))
    if sweep.valued:
        page.add(_winner(sweep), *_maps(page, sweep), _best(page, sweep), _pareto(page, sweep))
        page.add(*_effects(page, sweep))
    page.add(_table(sweep), _failures(sweep))
    return page


def _winner(sweep: SweepRecords) -> str:
    value, row = sweep.valued[0]
    told = f"Trial {row.trial} has the least {sweep.objective}, {value:.4f}"
    chosen = point_text(row, sweep.settings)
    return f"<p>{escape(told)}{':' if chosen else '.'} <code>{escape(chosen)}</code></p>"


def _facts(sweep: SweepRecords) -> list[tuple[str, str]]:
    done = sum(row.status is Status.done for row in sweep.rows)
    pruned = sum(row.status is Status.pruned for row in sweep.rows)
    facts = [
        ("trials", f"{len(sweep.rows)}"),
        ("done", f"{done}"),
        ("pruned", f"{pruned}"),
        ("failed", f"{len(sweep.rows) - done - pruned}"),
        ("computed for", duration(sum(row.duration for row in sweep.rows))),
    ]
    if sweep.valued:
        facts.append((f"best {sweep.objective}", f"{sweep.valued[0][0]:.4f}"))
    return facts


def _failures(sweep: SweepRecords) -> str:
    bad = [row for row in sweep.rows if not row.status.settled]
    if not bad:
        return ""
    rows = [
        (row.trial, row.status.value, row.attempt, point_text(row, sweep.settings), row.error,
         row.traceback_file)
        for row in bad
    ]  # fmt: skip
    headings = ("trial", "how", "attempts", "settings", "reason", "traceback")
    return section("Trials that did not end well", table(headings, rows, label="Failed trials"))


def _table(sweep: SweepRecords) -> str:
    names = sweep.settings
    settings = [short(name, names) for name in names]
    headings = (
        *("trial", "status", *settings, "seed", sweep.objective, "tokens", "outer steps"),
        *("run's seconds", "bytes", "took (s)", "report"),
    )
    rows = [_cells(sweep, row) for row in sweep.rows]
    lead = "A heading sorts; what is typed above the table must be in a row."
    return section("Trials", table(headings, rows, label="Trials", sorts=True), lead=lead)


def _cells(sweep: SweepRecords, row: Row) -> list[Any]:
    settings = [row.overrides.get(name) for name in sweep.settings]
    numbers = [row.numbers.get(name) for name in ("tokens", "outer_steps", "run_seconds")]
    where = f"{row.folder}/{REPORT}" if row.folder is not None else None
    there = where is not None and (sweep.folder / where).is_file()
    return [
        *(row.trial, row.status.value, *settings, row.seed, value_of(row, sweep.objective)),
        *(*numbers, bytes_of(row), round(row.duration, 1)),
        link("open", where) if there and where is not None else None,
    ]


def bytes_of(row: Row) -> int | None:
    """Sent and received by all; None when the trial left no result."""
    up, down = row.numbers.get("bytes_up"), row.numbers.get("bytes_down")
    return up + down if isinstance(up, int) and isinstance(down, int) else None


def _maps(page: Document, sweep: SweepRecords) -> Iterator[str]:
    axes = heat_axes(sweep)
    if axes is None:
        return
    figures = []
    for title, figure in list(heat_maps(sweep, *axes).items())[:MOST_MAPS]:
        told = f"Mean {sweep.objective} for each {axes[0]} and {axes[1]}"
        caption = f"{title}: {told}." if title else f"{told}."
        figures.append(page.figure(figure, caption=caption, alt=caption))
    yield section("Heat maps", columns(*figures))


def _best(page: Document, sweep: SweepRecords) -> str:
    runs: list[tuple[Row, RunRecords]] = []
    for _, row in sweep.valued[:MOST_CURVES]:
        if (run := sweep.run_of(row)) is not None:
            runs.append((row, run))
    if not runs:
        return ""
    caption = "Held-out losses of the best trials."
    drawn = page.figure(
        best_figure(runs), caption=caption, alt=caption, data=_best_table(sweep, runs)
    )
    return section("The best trials", axis_switch(), drawn)


def _best_table(sweep: SweepRecords, runs: list[tuple[Row, RunRecords]]) -> str:
    names = sweep.settings
    rows = [
        (row.trial, *(row.overrides.get(name) for name in names), value_of(row, sweep.objective))
        for row, _ in runs
    ]
    headings = ("trial", *(short(name, names) for name in names), sweep.objective)
    return table(headings, rows, label="The best trials")


def _pareto(page: Document, sweep: SweepRecords) -> str:
    times, sizes = [], []
    for value, row in sweep.valued:
        seconds, moved = row.numbers.get("run_seconds"), bytes_of(row)
        if isinstance(seconds, int | float):
            times.append((float(seconds), value, row))
        if moved is not None:
            sizes.append((moved / 1e6, value, row))
    blocks = []
    for places, title, cost in (
        (times, "run's time (seconds)", "the run's time"),
        (sizes, "megabytes sent and received", "bytes"),
    ):
        if places:
            caption = f"{sweep.objective} against {cost}; lower and further left is better."
            figure = pareto_figure(sweep, places, title=title)
            blocks.append(page.figure(figure, caption=caption, alt=caption))
    return section("What it costs", columns(*blocks)) if blocks else ""


def _effects(page: Document, sweep: SweepRecords) -> Iterator[str]:
    found = effects(sweep.rows, sweep.objective)
    if not found:
        return
    blocks = [_effect(page, effect, sweep.objective) for effect in found[:MOST_EFFECTS]]
    lead = (
        "The strongest first. Means over all else that was swept, seeds included; the numbers have "
        "the difference to the first value over trials that are equal in all else."
    )
    yield section("What each setting does", columns(*blocks), lead=lead)


def _effect(page: Document, effect: Effect, objective: str) -> str:
    rows = [
        (level.value, level.mean, level.difference, level.error, level.pairs or None, level.trials)
        for level in effect.levels
    ]
    headings = ("value", f"mean {objective}", "difference", "±", "pairs", "trials")
    listed = table(headings, rows, label=f"Effect of {effect.setting}")
    caption = f"What {effect.setting} does: the mean {objective} at each of its values."
    alt = f"Mean {objective} at each value of {effect.setting}."
    return page.figure(effect_figure(effect, objective), caption=caption, alt=alt, data=listed)
