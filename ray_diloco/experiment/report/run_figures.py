"""The figures of a run, as plain plotly JSON."""

from typing import Any

from ray_diloco.experiment.report.axes import TimeUnit, axis_titles, unit_for
from ray_diloco.experiment.report.curves import Point, eval_points, train_points
from ray_diloco.experiment.report.run_records import RunRecords
from ray_diloco.experiment.report.spans import last_moment, node_spans, utilisation
from ray_diloco.experiment.report.style import (
    EVAL_COLOUR,
    KIND_COLOURS,
    Figure,
    colour,
    draw_widely,
    layout,
)

MOST_NAMED_CURVES = 8
"""More nodes than these share a colour and one entry of the legend."""


def loss_figure(runs: list[RunRecords]) -> Figure:
    """Held-out and training losses of one run, or the held-out ones of several."""
    unit = unit_for(max(last_moment(run) for run in runs))
    if len(runs) == 1:
        curves = [_held_out(runs[0], "held-out loss", EVAL_COLOUR), *_training(runs[0])]
    else:
        curves = [_held_out(run, run.title, colour(at)) for at, run in enumerate(runs)]
    return switchable(curves, unit, virtual=all(run.virtual for run in runs))


def switchable(
    curves: list[tuple[dict[str, Any], list[Point]]], unit: TimeUnit, *, virtual: bool
) -> Figure:
    """Curves over time that the page can draw over each other axis instead."""
    titles = axis_titles(unit, virtual=virtual)
    places = [_places(points, unit) for _, points in curves]
    data = [
        {**trace, "x": places[at]["time"], "y": [round(point.loss, 5) for point in points]}
        for at, (trace, points) in enumerate(curves)
    ]
    axes = {
        name: {"title": title, "xs": [each[name] for each in places]}
        for name, title in titles.items()
    }
    shape = layout(height=400, x=titles["time"], y="loss (nats per token)")
    losses = (point.loss for _, points in curves for point in points)
    return draw_widely({"data": data, "layout": shape, "axes": axes}, losses)


def staleness_figure(run: RunRecords) -> Figure:
    """How many deltas were merged at each staleness."""
    ages = [delta["staleness"] for event in run.named("publication") for delta in event["deltas"]]
    counts = {age: ages.count(age) for age in range(max(ages, default=0) + 1)}
    bars = {
        "type": "bar",
        "x": list(counts),
        "y": list(counts.values()),
        "marker": {"color": KIND_COLOURS["rounds"]},
        "hovertemplate": "%{y} deltas at staleness %{x}<extra></extra>",
    }
    shape = layout(height=300, x="staleness (outer steps)", y="deltas merged")
    if len(counts) <= 20:
        shape["xaxis"]["dtick"] = 1
    return {"data": [bars], "layout": shape}


def utilisation_figure(run: RunRecords) -> Figure:
    """What each node's time went to."""
    last = last_moment(run)
    shares = {node: utilisation(spans, last) for node, spans in node_spans(run).items()}
    kinds = list(next(iter(shares.values()), {}))
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": kind,
            "y": list(shares),
            "x": [round(100 * each[kind], 2) for each in shares.values()],
            "marker": {"color": KIND_COLOURS[kind]},
            "hovertemplate": f"%{{y}}: %{{x:.1f}} % {kind}<extra></extra>",
        }
        for kind in kinds
        if any(each[kind] > 0 for each in shares.values())
    ]
    return _rows(data, len(shares), x="share of the node's time (%)")


def traffic_figure(run: RunRecords) -> Figure:
    """Who sent and received how much; None of it is known before the end."""
    rows = traffic_rows(run)
    up, down = [row[1] for row in rows], [row[2] for row in rows]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": title,
            "y": [row[0] for row in rows],
            "x": [round(count / 1e6, 3) for count in counts],
            "marker": {"color": KIND_COLOURS[title]},
            "hovertemplate": f"%{{y}}: %{{x:.2f}} MB {title}<extra></extra>",
        }
        for title, counts in (("upload", up), ("download", down))
    ]
    return _rows(data, len(rows), x="megabytes")


def traffic_rows(run: RunRecords) -> list[tuple[str, int, int]]:
    """Participant, bytes up, bytes down; what no node's report has is the master's."""
    if run.result is None:
        return []
    nodes = run.result["nodes"]
    rows = [(name, each["bytes_up"], each["bytes_down"]) for name, each in nodes.items()]
    up = run.result["bytes_up"] - sum(row[1] for row in rows)
    down = run.result["bytes_down"] - sum(row[2] for row in rows)
    return [*rows, ("master", up, down)] if up or down else rows


def _held_out(run: RunRecords, name: str, shade: str) -> tuple[dict[str, Any], list[Point]]:
    trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "line": {"color": shade, "width": 3},
        "marker": {"size": 6},
        "hovertemplate": "%{y:.4f}<extra>" + name + "</extra>",
    }
    return trace, eval_points(run)


def _training(run: RunRecords) -> list[tuple[dict[str, Any], list[Point]]]:
    curves = train_points(run)
    many = len(curves) > MOST_NAMED_CURVES
    found = []
    for number, (node, points) in enumerate(curves.items()):
        trace = {
            "type": "scatter",
            "mode": "lines",
            "name": "training loss of a node" if many else f"{node}, training",
            "line": {"color": colour(0 if many else number), "width": 1.5},
            "opacity": 0.35 if many else 0.8,
            "legendgroup": "training" if many else node,
            "showlegend": not many or number == 0,
            "hovertemplate": "%{y:.4f}<extra>" + node + "</extra>",
        }
        found.append((trace, points))
    return found


def _places(points: list[Point], unit: TimeUnit) -> dict[str, list[float | None]]:
    return {
        "time": [unit.of(point.at) for point in points],
        "outer_step": [point.outer_step for point in points],
        "tokens": [point.tokens for point in points],
        "bytes": [
            None if point.delta_bytes is None else round(point.delta_bytes / 1e6, 4)
            for point in points
        ],
    }


def _rows(data: list[dict[str, Any]], rows: int, *, x: str) -> Figure:
    """Stacked bars that lie, the first row at the top."""
    shape = layout(height=120 + max(24 * rows, 80), x=x, barmode="stack")
    shape["yaxis"] = {"autorange": "reversed", "type": "category", "automargin": True}
    return {"data": data, "layout": shape}
