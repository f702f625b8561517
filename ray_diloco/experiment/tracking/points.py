"""The curves of a run, point by point: train loss over a node's local steps, all else over outer
steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ray_diloco.protocol.run import Event

FINAL = (
    *("eval_loss", "tokens", "outer_steps", "deltas_merged", "rejected_deltas"),
    *("dropped_local_steps", "bytes_up", "bytes_down", "commits", "run_seconds", "wall_seconds"),
)
"""Numbers of result.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of the curve ``tag``."""

    tag: str
    value: float
    axis: Literal["local_step", "outer_step"]
    step: int


def points_of(event: Event) -> list[Point]:
    """What an event adds to the curves; most add nothing."""
    match event:
        case {"event": "upload_started", "participant": node, "loss": float(loss)}:
            tag, step = f"train_loss/{node}", event["local_step"]
            return [Point(tag=tag, value=loss, axis="local_step", step=step)]
        case {"event": "evaluation", "loss": float(loss), "outer_step": int(step)}:
            return [_outer("eval_loss", loss, step)]
        case {"event": "publication", "outer_step": int(step), "deltas": deltas}:
            ages = [each["staleness"] for each in deltas]
            return [
                _outer("deltas_merged", len(ages), step),
                *([_outer("staleness", sum(ages) / len(ages), step)] if ages else []),
                _outer("tokens_total", event["tokens_total"], step),
            ]
        case _:
            return []


def final_points(result: Mapping[str, Any]) -> list[Point]:
    """The numbers that runs are compared by, at the last outer step."""
    step = result["outer_steps"] or 0
    known = {name: result.get(name) for name in FINAL}
    return [
        _outer(f"result/{name}", value, step)
        for name, value in known.items()
        if isinstance(value, int | float)
    ]


def _outer(tag: str, value: float, step: int) -> Point:
    return Point(tag=tag, value=float(value), axis="outer_step", step=step)
