"""The last words of a run: a table of its nodes, its numbers, and where everything lies."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ray_diloco.experiment.events import read_events
from ray_diloco.experiment.legible import Needs
from ray_diloco.experiment.result import Result
from ray_diloco.experiment.run_files import EVENTS, REPORT
from ray_diloco.protocol.terms import OUT_OF_TURN

_NODE_COLUMNS = {
    "local_steps": "steps",
    "tokens": "tokens",
    "train_loss": "train loss",
    "utilisation": "utilisation",
    "deltas_landed": "deltas",
    "installs": "installs",
    "skipped_boundaries": "skipped",
}


NEEDED: Needs = {
    "status": str,
    **dict.fromkeys(("nodes", "failures", "restarts"), dict),
    **dict.fromkeys(("tokens", "outer_steps", "bytes_up", "bytes_down", "commits"), int),
    **dict.fromkeys(("rejected_deltas", "dropped_local_steps", "unsent_local_steps"), int),
    **dict.fromkeys(("range_sum", "deltas_merged", "initial_eval_loss", "eval_loss"), object),
    **dict.fromkeys(("diverged", "trace_hash", "sessions"), object),
    **dict.fromkeys(("run_seconds", "wall_seconds", "wall_start_seconds"), object),
}
"""What a result must have to be told."""


def print_summary(result: Result, console: Console) -> None:
    """The table, the numbers, what went wrong, and the path of the run folder, always last."""
    numbers = result.numbers
    if numbers["nodes"]:
        console.print(_node_table(numbers["nodes"]))
    lines = _lines(numbers)
    lines += [
        ("restarted", f"{name}, {len(reasons)} of its processes died: {reasons[-1]}")
        for name, reasons in numbers["restarts"].items()
    ]
    if waited := _out_of_turn(result.run_dir / EVENTS):
        lines.append(("budget", waited))
    if (result.run_dir / REPORT).is_file():
        lines.append(("report", str(result.run_dir / REPORT)))
    for name, text in lines:
        console.print(f"[bold]{name:>12}[/]  {escape(text)}", soft_wrap=True, highlight=False)
    for participant, reason in numbers["failures"].items():
        console.print(f"[bold red]{escape(participant)}: {escape(reason)}[/]", soft_wrap=True)
    if isinstance(numbers["range_sum"], list):
        for line in numbers["range_sum"]:
            console.print(f"[bold red]range sum: {escape(line)}[/]", soft_wrap=True)
    console.print(
        f"[bold]{'run folder':>12}[/]  {escape(str(result.run_dir))}",
        soft_wrap=True,
        highlight=False,
    )


def _out_of_turn(events: Path) -> str | None:
    """How many boundaries the commit budget skipped; None for none."""
    if not events.exists():
        return None
    number = sum(
        event["event"] == "boundary_skipped" and event.get("reason") == OUT_OF_TURN
        for event in read_events(events)
    )
    if not number:
        return None
    return (
        f"{number} boundaries came before their turn (hub.commits_per_hour); "
        "their steps went out with later deltas"
    )


def _node_table(nodes: dict[str, dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("node")
    for title in _NODE_COLUMNS.values():
        table.add_column(title, justify="right", no_wrap=True)
    for node_id, numbers in nodes.items():
        table.add_row(node_id, *(escape(_cell(name, numbers[name])) for name in _NODE_COLUMNS))
    return table


def _cell(name: str, value: Any) -> str:
    match value:
        case None:
            return "-"
        case float() if name == "utilisation":
            return f"{value:.0%}"
        case float():
            return f"{value:.3f}"
        case int():
            return f"{value:,}"
        case _:
            return str(value)


def _lines(numbers: dict[str, Any]) -> list[tuple[str, str]]:
    checked = "" if numbers["range_sum"] != "ok" else ", every local step accounted for"
    lost = numbers["dropped_local_steps"] + numbers["unsent_local_steps"]
    again = sum(numbers.get("trained_again", {}).values())
    lost = f"{lost} steps lost" + (f", {again} trained again" if again else "")
    rounds = f"{numbers['outer_steps']} outer steps"
    if numbers["deltas_merged"] is not None:
        rounds += f", {numbers['deltas_merged']} deltas merged"
    evaluated = numbers["initial_eval_loss"] is not None or numbers["eval_loss"] is not None
    return [
        ("status", f"{numbers['status']}{checked}"),
        ("ended", _reasons(numbers["nodes"])),
        *([("eval loss", _losses(numbers))] if evaluated else []),
        ("exchange", f"{rounds}, {numbers['rejected_deltas']} rejected, {lost}"),
        ("traffic", _traffic(numbers)),
        ("training", _training(numbers)),
    ]


def _losses(numbers: dict[str, Any]) -> str:
    diverged = ", diverged: a loss is not finite" if numbers["diverged"] else ""
    losses = f"{_loss(numbers['initial_eval_loss'])} -> {_loss(numbers['eval_loss'])}{diverged}"
    if "alone_eval_loss" not in numbers:
        return losses
    return f"{losses} (the fastest node alone, for as long: {_loss(numbers['alone_eval_loss'])})"


def _training(numbers: dict[str, Any]) -> str:
    """Time of the simulation and real time; what it took to start, Ray among it, told apart."""
    start = numbers["wall_start_seconds"]
    spent = f"{numbers['wall_seconds'] - start:.1f} s, after {start:.1f} s to start"
    simulated = numbers["trace_hash"] is not None
    took = f"{numbers['run_seconds']:.1f} s of virtual time, computed in {spent}"
    whole = f"{numbers['tokens']:,} tokens in {took if simulated else spent}"
    return whole + _sessions(numbers["sessions"])


def _sessions(sessions: list[dict[str, Any]]) -> str:
    """One that was killed is known up to its last event and its last status."""
    killed = sum(each["status"] == "killed" for each in sessions)
    if len(sessions) == 1:
        return ""
    apart = f", {killed} of them killed: their last second is not in these numbers"
    return f", in {len(sessions)} sessions{apart if killed else ''}"


def _reasons(nodes: dict[str, dict[str, Any]]) -> str:
    """Why the nodes ended: one word for all, or each with its own."""
    by_reason: dict[str, list[str]] = {}
    for node_id, numbers in nodes.items():
        by_reason.setdefault(numbers["stop_reason"], []).append(node_id)
    if len(by_reason) == 1:
        return next(iter(by_reason))
    return "; ".join(f"{', '.join(ids)}: {reason}" for reason, ids in by_reason.items()) or "-"


def _traffic(numbers: dict[str, Any]) -> str:
    up, down = numbers["bytes_up"] / 1e6, numbers["bytes_down"] / 1e6
    return f"{up:.1f} MB up, {down:.1f} MB down, {numbers['commits']} commits"


def _loss(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
