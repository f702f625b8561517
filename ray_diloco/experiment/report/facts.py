"""A run's numbers and warnings in words."""

from collections.abc import Iterator
from typing import Any

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.report.curves import eval_points
from ray_diloco.experiment.report.run_records import RunRecords
from ray_diloco.experiment.report.spans import last_moment
from ray_diloco.protocol.clock import MICROS_PER_SECOND

MOST_REFUSALS = 10

Fact = tuple[str, str]
"""What it is, and how much."""

_LOSSES_OF_WORK = {
    "dropped_local_steps": "local steps were dropped",
    "unsent_local_steps": "local steps were not sent before the end",
    "unresolved_local_steps": "local steps are in deltas whose fate is not known",
    "overflows": "steps overflowed",
    "rejected_deltas": "deltas were rejected",
}


def facts_of(run: RunRecords) -> list[Fact]:
    """The headline; of a run that goes on, what is known so far."""
    points, seconds = eval_points(run), last_moment(run) / MICROS_PER_SECOND
    first, final = (points[0].loss, points[-1].loss) if points else (None, None)
    publications = run.named("publication")
    merged = sum(len(each["deltas"]) for each in publications)
    steps = max((each["outer_step"] for each in publications), default=0)
    facts = [
        ("status", run.status),
        ("held-out loss", f"{loss_text(first)} → {loss_text(final)}"),
        ("outer steps", f"{steps}, {merged} deltas"),
        ("virtual time" if run.virtual else "time", duration(seconds)),
    ]
    return facts + (_facts_of_result(run.result) if run.result is not None else [])


def warnings_for(run: RunRecords) -> list[str]:
    """What a reader should know before believing a number, a line each."""
    return [*_of_result(run.result), *_of_config(run.config)]


def loss_text(loss: float | None) -> str:
    return "–" if loss is None else f"{loss:.4f}"


def duration(seconds: float) -> str:
    """As hours, minutes and seconds, the largest two that apply."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def _facts_of_result(result: dict[str, Any]) -> list[Fact]:
    commits = result["commits_per_hour"]
    facts = [
        ("tokens", f"{result['tokens']:,}"),
        ("sent", megabytes(result["bytes_up"])),
        ("received", megabytes(result["bytes_down"])),
        ("commits", f"{result['commits']}" + (f", {commits:,.0f} an hour" if commits else "")),
    ]
    if "wall_seconds" in result:
        facts.append(("took", duration(result["wall_seconds"])))
    return facts


def _of_result(result: dict[str, Any] | None) -> Iterator[str]:
    if result is None:
        yield "The run has not ended: the figures show how far it has come."
        return
    if result["status"] == "stopped":
        yield "The run was stopped before its limit."
    yield from _of_participants(result)
    verdict = result["range_sum"]
    for line in verdict if isinstance(verdict, list) else [verdict]:
        if line != "ok":
            yield f"Accounting of local steps: {line}"
    for name, meaning in _LOSSES_OF_WORK.items():
        if result.get(name):
            yield f"{result[name]} {meaning}."
    for refusal in (result.get("rejected") or [])[:MOST_REFUSALS]:
        yield f"Rejected: {refusal.get('path')}: {refusal.get('reason')}"


def _of_participants(result: dict[str, Any]) -> Iterator[str]:
    for name, reason in result["failures"].items():
        yield f"{name} failed: {reason}"
    for name, number in result["crashes"].items():
        yield f"{name} crashed {_times(number)}, as its scenario says."
    for name, reasons in result.get("restarts", {}).items():
        yield f"{name} was started again {_times(len(reasons))}: {reasons[-1]}."
    for name, node in result["nodes"].items():
        if node.get("data_note"):
            yield f"{name}: {node['data_note']}"


def _times(number: int) -> str:
    return f"{number} time{'s' if number > 1 else ''}"


def _of_config(config: dict[str, Any]) -> list[str]:
    from ray_diloco.experiment.checks import warnings_of  # brings torch
    from ray_diloco.experiment.reading import read_config

    try:
        return warnings_of(read_config(config))
    except ConfigError:
        return []  # written by a version that knew other settings
