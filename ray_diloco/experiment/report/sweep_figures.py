"""The figures of a sweep, as plain plotly JSON."""

from collections.abc import Iterable, Sequence
from itertools import product
from statistics import fmean
from typing import Any

from ray_diloco.experiment.report.axes import unit_for
from ray_diloco.experiment.report.curves import Point, eval_points
from ray_diloco.experiment.report.run_figures import switchable
from ray_diloco.experiment.report.run_records import RunRecords
from ray_diloco.experiment.report.spans import last_moment
from ray_diloco.experiment.report.style import EVAL_COLOUR, Figure, colour, draw_widely, layout
from ray_diloco.experiment.report.sweep_records import SweepRecords
from ray_diloco.experiment.sweep.answer import point_text, value_text
from ray_diloco.experiment.sweep.effects import Effect
from ray_diloco.experiment.sweep.rows import Row

LR, MOMENTUM = "diloco.outer_lr", "diloco.outer_momentum"
SHADED = 0.8
"""Share of the trials, the best ones, that the colours of a heat map tell apart; worse ones look
like the last of these.
"""
BESIDE = ("diloco.inner_steps", "cluster")
"""Settings that get a heat map for each of their values."""


def best_figure(runs: list[tuple[Row, RunRecords]]) -> Figure:
    """Held-out losses of some trials."""
    unit = unit_for(max(last_moment(run) for _, run in runs))
    curves: list[tuple[dict[str, Any], list[Point]]] = []
    for number, (row, run) in enumerate(runs):
        name = f"trial {row.trial}"
        trace = {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "line": {"color": colour(number), "width": 2},
            "hovertemplate": "%{y:.4f}<extra>" + name + "</extra>",
        }
        curves.append((trace, eval_points(run)))
    return switchable(curves, unit, virtual=all(run.virtual for _, run in runs))


def heat_axes(sweep: SweepRecords) -> tuple[str, str] | None:
    """The two settings of the heat maps: outer_lr and outer_momentum where both were swept, else
    the first two of numbers; None when there are no two.
    """
    names = [name for name, values in sweep.settings.items() if _are_numbers(values)]
    if LR in names and MOMENTUM in names:
        return LR, MOMENTUM
    usual = [name for name in names if name not in BESIDE]
    return (usual[0], usual[1]) if len(usual) > 1 else None


def heat_maps(sweep: SweepRecords, x: str, y: str) -> dict[str, Figure]:
    """By title, a map of the mean objective for each value of `BESIDE` that was swept; all have the
    same colours.
    """
    beside = {name: sweep.settings[name] for name in BESIDE if name in sweep.settings}
    valued, maps = sweep.valued, {}
    lowest, highest = valued[0][0], valued[int(SHADED * (len(valued) - 1))][0]
    for values in product(*beside.values()):
        place = dict(zip(beside, values, strict=True))
        inside = [
            (value, row)
            for value, row in valued
            if all(row.overrides.get(name) == each for name, each in place.items())
        ]
        if inside:
            title = ", ".join(f"{_last(name)} {value_text(each)}" for name, each in place.items())
            maps[title] = _heat_map(inside, x, y, sweep.objective, (lowest, highest))
    return maps


def pareto_figure(
    sweep: SweepRecords, places: Sequence[tuple[float, float, Row]], *, title: str
) -> Figure:
    """Trials as (cost, objective, row), and a line through those that none beats in both."""
    names = sweep.settings
    texts = [f"trial {row.trial}: {point_text(row, names)}" for _, _, row in places]
    best = front([(cost, value) for cost, value, _ in places])
    trials = {
        "type": "scatter",
        "mode": "markers",
        "name": "trials",
        "x": [cost for cost, _, _ in places],
        "y": [value for _, value, _ in places],
        "text": texts,
        "marker": {"size": 8, "color": colour(0), "opacity": 0.7},
        "hovertemplate": "%{text}<br>%{x:.5~g}, %{y:.4f}<extra></extra>",
    }
    line = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "none is better in both",
        "x": [places[at][0] for at in best],
        "y": [places[at][1] for at in best],
        "line": {"color": EVAL_COLOUR, "width": 2, "shape": "hv"},
        "marker": {"size": 10, "symbol": "diamond"},
        "hoverinfo": "skip",
    }
    shape = layout(height=360, x=title, y=sweep.objective)
    return draw_widely({"data": [trials, line], "layout": shape}, (value for _, value, _ in places))


def front(places: Sequence[tuple[float, float]]) -> list[int]:
    """Numbers of the places that no other one beats in both, by rising cost."""
    best: list[int] = []
    for at in sorted(range(len(places)), key=lambda number: places[number]):
        if not best or places[at][1] < places[best[-1]][1]:
            best.append(at)
    return best


def effect_figure(effect: Effect, objective: str) -> Figure:
    """The mean objective at each value of a setting."""
    levels, ordered = effect.levels, _are_numbers(level.value for level in effect.levels)
    if ordered:
        levels = tuple(sorted(levels, key=lambda level: level.value))
    points = {
        "type": "scatter",
        "mode": "lines+markers" if ordered else "markers",
        "x": [value_text(level.value) for level in levels],
        "y": [level.mean for level in levels],
        "text": [f"{level.trials} trials" for level in levels],
        "line": {"color": colour(0), "width": 2},
        "marker": {"size": 9},
        "hovertemplate": "%{x}: %{y:.4f}, %{text}<extra></extra>",
    }
    shape = layout(height=260, x=effect.setting, y=f"mean {objective}")
    shape["xaxis"]["type"] = "category"
    return draw_widely({"data": [points], "layout": shape}, points["y"])


def _heat_map(
    valued: list[tuple[float, Row]], x: str, y: str, objective: str, scale: tuple[float, float]
) -> Figure:
    columns = _in_order(row.overrides.get(x) for _, row in valued)
    rows = _in_order(row.overrides.get(y) for _, row in valued)
    means = [[_mean(valued, {x: across, y: up}) for across in columns] for up in rows]
    data = {
        "type": "heatmap",
        "x": [value_text(value) for value in columns],
        "y": [value_text(value) for value in rows],
        "z": means,
        "zmin": scale[0],
        "zmax": scale[1],
        "text": [["" if mean is None else f"{mean:.3f}" for mean in line] for line in means],
        "texttemplate": "%{text}",
        "colorscale": "Viridis",
        "reversescale": True,
        "colorbar": {"title": {"text": objective}, "thickness": 12, "outlinewidth": 0},
        "hovertemplate": f"{_last(x)} %{{x}}, {_last(y)} %{{y}}: %{{z:.4f}}<extra></extra>",
    }
    shape = layout(height=140 + max(46 * len(rows), 130), x=x, y=y)
    shape["xaxis"]["type"] = shape["yaxis"]["type"] = "category"
    shape["xaxis"]["showgrid"] = shape["yaxis"]["showgrid"] = False
    return {"data": [data], "layout": shape}


def _mean(valued: list[tuple[float, Row]], place: dict[str, Any]) -> float | None:
    """Of all trials there, seeds and other settings alike."""
    found = [
        value
        for value, row in valued
        if all(row.overrides.get(name) == each for name, each in place.items())
    ]
    return fmean(found) if found else None


def _in_order(values: Iterable[Any]) -> list[Any]:
    return sorted(set(values), key=lambda value: (value is not None, value))


def _are_numbers(values: Iterable[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _last(name: str) -> str:
    return name.rsplit(".", 1)[-1]
