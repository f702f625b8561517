"""The page of a run, or of several runs beside each other."""

from html import escape
from typing import Any

from omegaconf import OmegaConf

from ray_diloco.experiment.report.curves import eval_points
from ray_diloco.experiment.report.document import (
    Document,
    bullets,
    columns,
    facts_list,
    folded,
    preformatted,
    section,
    table,
)
from ray_diloco.experiment.report.facts import duration, facts_of, loss_text, warnings_for
from ray_diloco.experiment.report.run_figures import (
    loss_figure,
    staleness_figure,
    traffic_figure,
    traffic_rows,
    utilisation_figure,
)
from ray_diloco.experiment.report.run_records import RunRecords
from ray_diloco.experiment.report.switch import axis_switch
from ray_diloco.experiment.report.timeline_figure import timeline_figure
from ray_diloco.protocol.clock import MICROS_PER_SECOND

_NODE_COLUMNS = {
    "local_steps": "local steps",
    "tokens": "tokens",
    "train_loss": "last training loss",
    "utilisation": "utilisation",
    "deltas_landed": "deltas",
    "installs": "installs",
    "skipped_boundaries": "skipped",
    "stop_reason": "ended",
}


def run_page(run: RunRecords) -> Document:
    """Everything of one run."""
    page = Document(title=run.title)
    page.add(f"<h1>{escape(run.title)}</h1>", facts_list(facts_of(run)))
    page.add(*_sections(page, run, switch=True))
    return page


def runs_page(runs: list[RunRecords]) -> Document:
    """Several runs: beside each other, then one after the other."""
    page = Document(title=f"{len(runs)} runs")
    page.add(f"<h1>{len(runs)} runs</h1>", _comparison(page, runs))
    for run in runs:
        page.add(f"<h1>{escape(run.title)}</h1>", facts_list(facts_of(run)))
        page.add(*_sections(page, run, switch=False))
    return page


def _sections(page: Document, run: RunRecords, *, switch: bool) -> list[str]:
    return [
        _warnings(run),
        _loss(page, run, switch=switch),
        _timeline(page, run),
        _nodes(page, run),
        _exchange(page, run),
        _circumstances(run),
    ]


def _warnings(run: RunRecords) -> str:
    lines = warnings_for(run)
    return section("Warnings", bullets(lines)) if lines else ""


def _loss(page: Document, run: RunRecords, *, switch: bool) -> str:
    points = eval_points(run)
    if not points:
        return section("Loss", lead="Nothing has been evaluated yet.")
    first, final = loss_text(points[0].loss), loss_text(points[-1].loss)
    alt = f"Held-out loss from {first} to {final} over {len(points)} evaluations."
    rows = [
        (point.outer_step, point.at / MICROS_PER_SECOND, point.tokens, point.loss)
        for point in points
    ]
    numbers = table(
        ("outer step", "seconds", "tokens merged", "held-out loss"), rows, label="Held-out losses"
    )
    caption = (
        "Held-out loss of each global, and each node's mean training loss between two deltas, "
        "in nats per token."
    )
    drawn = page.figure(loss_figure([run]), caption=caption, alt=alt, data=numbers)
    return section("Loss", axis_switch() if switch else "", drawn)


def _timeline(page: Document, run: RunRecords) -> str:
    caption = (
        "What each node did when. The thin lanes are its uploads and downloads; a dotted line is "
        "a round's publication. Drag to zoom, double-click to go back."
    )
    alt = (
        "A lane for each node with its stretches of compute, waiting, upload, download and "
        f"being away, and {len(run.named('publication'))} rounds of the master."
    )
    return section("Timeline", page.figure(timeline_figure(run), caption=caption, alt=alt))


def _nodes(page: Document, run: RunRecords) -> str:
    used = page.figure(
        utilisation_figure(run),
        caption="What each node's time went to, from its first step to the end of the run.",
        alt="Shares of compute, waiting and being away for each node.",
    )
    if run.result is None:
        return section("Nodes", used)
    rows = [
        (name, *(_shown(each, numbers.get(each)) for each in _NODE_COLUMNS))
        for name, numbers in run.result["nodes"].items()
    ]
    listed = table(("node", *_NODE_COLUMNS.values()), rows, label="Nodes", sorts=True)
    return section("Nodes", used, listed)


def _shown(column: str, value: Any) -> Any:
    return f"{value:.0%}" if column == "utilisation" and value is not None else value


def _exchange(page: Document, run: RunRecords) -> str:
    blocks = []
    if any(event["deltas"] for event in run.named("publication")):
        caption = (
            "How many outer steps a delta's base was behind the global that it was merged into."
        )
        alt = "Number of merged deltas at each staleness."
        blocks.append(page.figure(staleness_figure(run), caption=caption, alt=alt))
    if rows := traffic_rows(run):
        numbers = table(("participant", "bytes up", "bytes down"), rows, label="Traffic")
        caption = "Where the bytes went: sent to and received from the repository."
        alt = "Megabytes up and down for each participant."
        blocks.append(page.figure(traffic_figure(run), caption=caption, alt=alt, data=numbers))
    return section("Exchange", columns(*blocks)) if blocks else ""


def _circumstances(run: RunRecords) -> str:
    result = run.result or {}
    facts = {
        "folder": str(run.folder.absolute()),
        "overrides": " ".join(result.get("overrides", [])) or None,
        "trace hash": result.get("trace_hash"),
        "configuration hash": result.get("config_hash"),
        "data manifest": result.get("data_manifest"),
        "model sha256": result.get("model_sha256"),
        "repository": result.get("repo_id"),
        **result.get("versions", {}),
    }
    rows = [(name, value) for name, value in facts.items() if value is not None]
    return section(
        "Configuration and environment",
        folded("config.yaml", preformatted(OmegaConf.to_yaml(OmegaConf.create(run.config)))),
        folded("Environment", table(("what", "which"), rows, label="Environment")),
    )


def _comparison(page: Document, runs: list[RunRecords]) -> str:
    final = [points[-1].loss if (points := eval_points(run)) else None for run in runs]
    rows = [
        (run.title, run.status, loss, *_numbers(run)) for run, loss in zip(runs, final, strict=True)
    ]
    headings = ("run", "status", "held-out loss", "outer steps", "tokens", "time", "bytes")
    told = ", ".join(
        f"{run.title} {loss_text(loss)}" for run, loss in zip(runs, final, strict=True)
    )
    drawn = page.figure(
        loss_figure(runs),
        caption="Held-out losses of all runs.",
        alt=f"One curve for each run; final losses: {told}.",
    )
    differing = differences([run.config for run in runs])
    return section(
        "Beside each other",
        table(headings, rows, label="Runs", sorts=True),
        axis_switch(),
        drawn,
        table(("setting", *(run.title for run in runs)), differing, label="Settings that differ"),
    )


def _numbers(run: RunRecords) -> tuple[Any, ...]:
    result = run.result
    if result is None:
        return (None,) * 4
    moved, seconds = result["bytes_up"] + result["bytes_down"], result["run_seconds"]
    return result.get("outer_steps"), result["tokens"], duration(seconds), moved


def differences(configs: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Dotted name and each one's value, of the settings that are not the same in all."""
    flat = [_flat(config) for config in configs]
    names = sorted({name for each in flat for name in each})
    rows = [(name, *(each.get(name) for each in flat)) for name in names]
    return [row for row in rows if any(value != row[1] for value in row[2:])]


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    return {
        f"{group}.{name}": value
        for group, settings in config.items()
        if isinstance(settings, dict)
        for name, value in settings.items()
    }
