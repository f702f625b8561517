"""HTML without a framework: blocks as text, and the whole document, which needs no network."""

import base64
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from typing import Any
from urllib.parse import quote

from ray_diloco.experiment.report.style import Figure

_ASSETS = files("ray_diloco.experiment.report") / "assets"
REFRESH_SECONDS = 5


@dataclass(slots=True, kw_only=True)
class Document:
    """Blocks in the order of their coming, and the figures that they show."""

    title: str
    blocks: list[str] = field(default_factory=list[str])
    figures: dict[str, Figure] = field(default_factory=dict[str, Figure])

    def add(self, *blocks: str) -> None:
        self.blocks.extend(blocks)

    def figure(self, figure: Figure, *, caption: str, alt: str, data: str = "") -> str:
        """A place for a figure. ``alt``: what it shows, for those who do not see it; ``data``: its
        numbers as a table.
        """
        name = f"figure-{len(self.figures) + 1}"
        self.figures[name] = figure
        height = figure["layout"]["height"]
        table = folded("The numbers", data) if data else ""
        return (
            f'<figure><div class="plot" id="{name}" role="img" aria-label="{escape(alt)}" '
            f'style="height:{height}px"></div>'
            f"<figcaption>{escape(caption)}</figcaption>{table}</figure>"
        )

    def to_html(self, *, live: bool = False) -> str:
        """The whole page. ``live``: it reloads itself while its run goes on."""
        refresh = f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}">' if live else ""
        return Template(_asset("page.html")).substitute(
            title=escape(self.title),
            refresh=refresh,
            style=_asset("report.css"),
            body="\n".join(self.blocks),
            figures=as_script(self.figures),
            plotly=_packed_plotly() if self.figures else "",
            script=_asset("report.js"),
        )


def as_script(value: Any) -> str:
    """JSON that nothing in it can end the script element of."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def section(title: str, *blocks: str, lead: str = "") -> str:
    told = f'<p class="lead">{escape(lead)}</p>' if lead else ""
    return f"<section><h2>{escape(title)}</h2>{told}{''.join(blocks)}</section>"


def facts_list(facts: Iterable[tuple[str, str]]) -> str:
    """The headline, name above value."""
    pairs = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts
    )
    return f'<dl class="facts">{pairs}</dl>'


def bullets(lines: Iterable[str]) -> str:
    return f'<ul class="warnings">{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul>'


@dataclass(frozen=True, slots=True)
class Link:
    """A cell that leads to another page."""

    text: str
    target: str


def link(text: str, target: str) -> Link:
    """``target``: a path relative to this page."""
    return Link(text, quote(target))


def folded(summary: str, block: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{block}</details>"


def preformatted(text: str) -> str:
    return f'<pre tabindex="0">{escape(text)}</pre>'


def columns(*blocks: str) -> str:
    """Beside each other where there is room."""
    return f'<div class="columns">{"".join(blocks)}</div>'


def table(
    headings: Sequence[str], rows: Iterable[Sequence[Any]], *, label: str, sorts: bool = False
) -> str:
    """``sorts``: its headings are buttons that sort it, and a field above it filters it."""
    listed = [list(row) for row in rows]
    numbers = [any(_is_number(row[at]) for row in listed) for at in range(len(headings))]
    head = "".join(
        _heading(text, sorts=sorts, number=number)
        for text, number in zip(headings, numbers, strict=True)
    )
    body = "".join(f"<tr>{''.join(map(_cell, row, numbers))}</tr>" for row in listed)
    kind = ' class="sorts"' if sorts else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">'
        f"<table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def cell_text(value: Any) -> str:
    """A value as a table shows it."""
    match value:
        case None:
            return "–"
        case bool():
            return str(value).lower()
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.5g}"
        case _:
            return str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _heading(text: str, *, sorts: bool, number: bool) -> str:
    inner = f'<button type="button">{escape(text)}</button>' if sorts else escape(text)
    return f'<th scope="col"{_kind(number)}>{inner}</th>'


def _kind(number: bool) -> str:
    return ' class="number"' if number else ""


def _cell(value: Any, number: bool) -> str:
    """``number``: its column is one of numbers, and stands to the right."""
    if isinstance(value, Link):
        return f'<td><a href="{escape(value.target)}">{escape(value.text)}</a></td>'
    exact = f' data-value="{value!r}"' if _is_number(value) else ""
    return f"<td{_kind(number)}{exact}>{escape(cell_text(value))}</td>"


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


@cache
def _packed_plotly() -> str:
    """plotly.js as the browser unpacks it: a third of its size, so that a page stays small."""
    source = (files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    return base64.b64encode(zlib.compress(source, 6)).decode("ascii")
