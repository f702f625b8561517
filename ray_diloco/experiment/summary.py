"""The last words of a run: a table of its nodes, its numbers, and where everything lies."""

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ray_diloco.experiment.result import Result

_NODE_COLUMNS = {
    "local_steps": "steps",
    "tokens": "tokens",
    "train_loss": "train loss",
    "utilisation": "utilisation",
    "deltas_landed": "deltas",
    "installs": "installs",
    "skipped_boundaries": "skipped",
}


def print_summary(result: Result, console: Console) -> None:
    """The table, the numbers, what went wrong, and the path of the run folder, always last."""
    numbers = result.numbers
    if numbers["nodes"]:
        console.print(_node_table(numbers["nodes"]))
    for name, text in _lines(numbers):
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
    rounds = f"{numbers['outer_steps']} outer steps"
    if "deltas_merged" in numbers:
        rounds += f", {numbers['deltas_merged']} deltas merged"
    return [
        ("status", f"{numbers['status']}{checked}"),
        ("ended", _reasons(numbers["nodes"])),
        ("eval loss", f"{_loss(numbers['initial_eval_loss'])} -> {_loss(numbers['eval_loss'])}"),
        ("exchange", f"{rounds}, {numbers['rejected_deltas']} rejected, {lost} steps lost"),
        ("traffic", _traffic(numbers)),
        ("training", f"{numbers['tokens']:,} tokens in {numbers['wall_seconds']:.1f} s"),
    ]


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
