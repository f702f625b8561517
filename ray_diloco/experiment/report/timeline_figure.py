"""The timeline of a run: a lane for each node, and the master's rounds above them."""

from typing import Any

from ray_diloco.experiment.report.axes import TimeUnit, unit_for
from ray_diloco.experiment.report.run_records import RunRecords
from ray_diloco.experiment.report.spans import KINDS, Span, last_moment, node_spans
from ray_diloco.experiment.report.style import KIND_COLOURS, Figure, layout

MOST_SPANS = 3000
"""Of one kind; when there are more, neighbours that are close together are drawn as one."""
BESIDE = ("upload", "download")
"""Kinds that go on beside the training; one that takes no time is still to be seen."""
MOST_LINES = 150
"""Rounds that get a line through all lanes."""
_PLACES = {
    "compute": (-0.14, 0.44),
    "waiting": (-0.14, 0.44),
    "crashed": (-0.14, 0.44),
    "upload": (0.17, 0.14),
    "download": (0.33, 0.14),
}
"""Where in its lane a kind is drawn: the middle, down from the lane's, and the height."""


def timeline_figure(run: RunRecords) -> Figure:
    """Time runs to the right; the first node's lane is below the master's."""
    last = last_moment(run)
    unit = unit_for(last)
    lanes = node_spans(run)
    data = [
        _bars(kind, lanes, unit, last)
        for kind in KINDS
        if any(span.kind == kind for spans in lanes.values() for span in spans)
    ]
    rounds = run.named("publication")
    if rounds:
        data.append(_rounds(rounds, unit))
    shape = layout(height=130 + 46 * (len(lanes) + 1), x=_title(run, unit), barmode="overlay")
    shape["yaxis"] = {
        "tickvals": list(range(-1, len(lanes))),
        "ticktext": ["master", *lanes],
        "range": [len(lanes) - 0.4, -1.5],
        "automargin": True,
        "showgrid": False,
        "zeroline": False,
        "fixedrange": True,
    }
    shape["xaxis"]["range"] = [0, unit.of(last) * 1.01]
    shape["shapes"] = [_line(unit.of(each["at"])) for each in rounds[:MOST_LINES]]
    return {"data": data, "layout": shape}


def thinned(spans: list[Span], last: int) -> list[Span]:
    """Spans of one node and kind; as many as `MOST_SPANS` allows, close neighbours merged."""
    if len(spans) <= MOST_SPANS:
        return spans
    gap = last // MOST_SPANS
    kept = [spans[0]]
    for span in spans[1:]:
        before = kept[-1]
        if span.start - before.end <= gap:
            end = max(before.end, span.end)
            kept[-1] = Span(
                node=span.node, kind=span.kind, start=before.start, end=end, text="several"
            )
        else:
            kept.append(span)
    return kept


def _bars(kind: str, lanes: dict[str, list[Span]], unit: TimeUnit, last: int) -> dict[str, Any]:
    middle, height = _PLACES[kind]
    drawn = [
        (lane, span)
        for lane, spans in enumerate(lanes.values())
        for span in thinned([each for each in spans if each.kind == kind], last)
    ]
    return {
        "type": "bar",
        "orientation": "h",
        "name": kind,
        "base": [unit.of(span.start) for _, span in drawn],
        "x": [round(unit.of(span.end) - unit.of(span.start), 4) for _, span in drawn],
        "y": [round(lane + middle, 2) for lane, _ in drawn],
        "width": height,
        "text": [f"{span.node}: {span.text}" for _, span in drawn],
        "textposition": "none",
        "marker": {
            "color": KIND_COLOURS[kind],
            "line": {"width": int(kind in BESIDE), "color": KIND_COLOURS[kind]},
        },
        "hovertemplate": f"%{{text}}<br>from %{{base:.3~f}} to %{{x:.3~f}} {unit.name}"
        f"<extra>{kind}</extra>",
    }


def _rounds(rounds: list[dict[str, Any]], unit: TimeUnit) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": "rounds",
        "base": [unit.of(each["began"]) for each in rounds],
        "x": [round(unit.of(each["at"]) - unit.of(each["began"]), 4) for each in rounds],
        "y": [-1] * len(rounds),
        "width": 0.5,
        "text": [
            f"outer step {each['outer_step']}: {len(each['deltas'])} deltas" for each in rounds
        ],
        "textposition": "none",
        "marker": {
            "color": KIND_COLOURS["rounds"],
            "line": {"width": 1, "color": KIND_COLOURS["rounds"]},
        },
        "hovertemplate": "%{text}<extra>rounds</extra>",
    }


def _line(x: float) -> dict[str, Any]:
    """Through all lanes, at a publication."""
    return {
        "type": "line",
        "xref": "x",
        "yref": "paper",
        "x0": x,
        "x1": x,
        "y0": 0,
        "y1": 1,
        "layer": "below",
        "line": {"color": KIND_COLOURS["rounds"], "width": 1, "dash": "dot"},
        "opacity": 0.45,
    }


def _title(run: RunRecords, unit: TimeUnit) -> str:
    return f"{'virtual ' if run.virtual else ''}time ({unit.name})"
