"""The figures of a report one by one, for notebooks."""

from pathlib import Path
from typing import TYPE_CHECKING

from ray_diloco.experiment.report.run_figures import (
    loss_figure,
    staleness_figure,
    traffic_figure,
    utilisation_figure,
)
from ray_diloco.experiment.report.run_records import RunRecords, read_run
from ray_diloco.experiment.report.style import Figure
from ray_diloco.experiment.report.sweep_figures import (
    best_figure,
    effect_figure,
    heat_axes,
    heat_maps,
)
from ray_diloco.experiment.report.sweep_records import read_sweep
from ray_diloco.experiment.report.timeline_figure import timeline_figure
from ray_diloco.experiment.sweep.effects import effects
from ray_diloco.experiment.sweep.rows import Row

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as PlotlyFigure

MOST_CURVES = 8


def run_gallery(folder: Path) -> dict[str, "PlotlyFigure"]:
    """By name: loss, timeline, staleness, utilisation, traffic."""
    run = read_run(folder)
    drawn = {
        "loss": loss_figure([run]),
        "timeline": timeline_figure(run),
        "staleness": staleness_figure(run),
        "utilisation": utilisation_figure(run),
        "traffic": traffic_figure(run),
    }
    return _as_plotly(drawn)


def sweep_gallery(folder: Path) -> dict[str, "PlotlyFigure"]:
    """By name: ``heat map``, or ``heat map: inner_steps 10`` where there are several; ``best
    trials``; ``effect of <setting>``.
    """
    sweep = read_sweep(folder)
    drawn: dict[str, Figure] = {}
    axes = heat_axes(sweep)
    if sweep.valued and axes is not None:
        for title, figure in heat_maps(sweep, *axes).items():
            drawn[f"heat map: {title}" if title else "heat map"] = figure
    runs: list[tuple[Row, RunRecords]] = [
        (row, run)
        for _, row in sweep.valued[:MOST_CURVES]
        if (run := sweep.run_of(row)) is not None
    ]
    if runs:
        drawn["best trials"] = best_figure(runs)
    for effect in effects(sweep.rows, sweep.objective):
        drawn[f"effect of {effect.setting}"] = effect_figure(effect, sweep.objective)
    return _as_plotly(drawn)


def _as_plotly(drawn: dict[str, Figure]) -> dict[str, "PlotlyFigure"]:
    from plotly.graph_objects import Figure as PlotlyFigure  # takes a while

    return {
        name: PlotlyFigure(data=figure["data"], layout=figure["layout"])
        for name, figure in drawn.items()
    }
