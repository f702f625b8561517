"""What all figures share. The page, which knows light from dark, colours text and lines."""

from collections.abc import Iterable
from typing import Any

Figure = dict[str, Any]
"""Plotly JSON: ``data`` and ``layout``; and ``axes`` where the page can switch them."""

PALETTE = (
    *("#3d7fd0", "#d9772b", "#2f9e63", "#c74b8a", "#8464cc"),
    *("#a8901c", "#1f9ea8", "#9c6644", "#5f7f3a", "#b0413e"),
)
"""Of much the same lightness, to be read on white and on black."""

KIND_COLOURS = {
    "compute": "#3d7fd0",
    "waiting": "#a3aab4",
    "upload": "#d9772b",
    "download": "#2f9e63",
    "crashed": "#d43d51",
    "done or idle": "#ced3da",
    "rounds": "#8464cc",
}
EVAL_COLOUR = "#8464cc"
WIDE = 20.0
"""Times the least loss that the greatest may be before an axis goes by orders of magnitude: else
one run that diverged presses all others flat.
"""


def colour(number: int) -> str:
    """Of the n-th of several things."""
    return PALETTE[number % len(PALETTE)]


def layout(*, height: int, x: str, y: str = "", **more: Any) -> dict[str, Any]:
    """A layout with titled axes whose legend lies below."""
    return {
        "height": height,
        "margin": {"l": 52, "r": 12, "t": 12, "b": 48},
        "xaxis": {"title": {"text": x}, "automargin": True},
        "yaxis": {"title": {"text": y}, "automargin": True},
        "legend": {
            "orientation": "h",
            "traceorder": "normal",
            "x": 0,
            "y": 1.02,
            "yanchor": "bottom",
        },
        "hovermode": "closest",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        **more,
    }


def draw_widely(figure: Figure, losses: Iterable[float]) -> Figure:
    """The figure, its upright axis by orders of magnitude where these lie far apart."""
    found = list(losses)
    if found and min(found) > 0 and max(found) > WIDE * min(found):
        figure["layout"]["yaxis"]["type"] = "log"
    return figure
