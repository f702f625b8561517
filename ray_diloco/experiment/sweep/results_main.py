"""The command ``ray-diloco-results``: reads what a sweep left."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.consoles import ShowingConsole
from ray_diloco.experiment.folders import require_place
from ray_diloco.experiment.one_line import one_line_errors
from ray_diloco.experiment.sweep.answer import (
    best_text,
    print_answer,
    print_comparison,
    short,
    value_text,
)
from ray_diloco.experiment.sweep.effects import compared
from ray_diloco.experiment.sweep.last_words import counts_text
from ray_diloco.experiment.sweep.objectives import NUMBERS, objective_of
from ray_diloco.experiment.sweep.rows import Row, Status, latest, read_rows
from ray_diloco.experiment.sweep.search_front import print_front
from ray_diloco.experiment.sweep.table import write_csv
from ray_diloco.protocol.choices import did_you_mean


def main() -> None:
    """Print, filter, compare or export; exits with 2 when it was used wrongly."""
    with one_line_errors("ray-diloco-results"):
        _show(_parser().parse_args())


def chosen(rows: Sequence[Row], conditions: Sequence[str], status: str | None) -> list[Row]:
    """The rows that meet every ``name=value``: of a setting, a chosen group or the seed; its last
    word is enough where no other setting ends with it. ConfigError for a name that no row has.
    """
    for condition in conditions:
        name, equals, wanted = condition.partition("=")
        names = list(dict.fromkeys(each for row in rows for each in _named(row)))
        meant = next((each for each in names if short(each, names) == name), name)
        if rows and (not equals or meant not in names):
            hint = did_you_mean(name, names)
            raise ConfigError("--where", condition, f"expected name=value of a swept setting{hint}")
        there = list(dict.fromkeys(str(_named(row).get(meant)) for row in rows))
        rows = [row for row in rows if _same(_named(row).get(meant), wanted)]
        if there and not rows:
            raise ConfigError("--where", condition, f"expected one of {', '.join(there)}")
    return [row for row in rows if status is None or row.status.value == status]


def objectives_of(rows: Sequence[Row], text: str) -> list[str]:
    """Of names with commas between them. ConfigError for one that no trial has."""
    known = {
        name
        for row in rows
        for name, value in row.numbers.items()
        if isinstance(value, int | float)
    }
    return [objective_of("--objective", each, sorted(known) or NUMBERS) for each in text.split(",")]


def _show(given: argparse.Namespace) -> None:
    console = ShowingConsole()
    every = latest(read_rows(given.sweep))
    objectives = objectives_of(every, given.objective)
    rows = chosen(every, given.where, given.status)
    if given.csv is not None:
        require_place("--csv", given.csv)
        write_csv(rows, given.csv)
        console.print(f"{len(rows)} trials in {escape(str(given.csv))}", soft_wrap=True)
    elif given.other is not None:
        others = chosen(latest(read_rows(given.other)), given.where, given.status)
        print_comparison(compared(rows, others, objectives[0]), objectives[0], console)
    else:
        print_answer(rows, objectives[0], given.top, console)
        if len(objectives) > 1:
            print_front(rows, objectives, console)
        if best := best_text(rows, objectives[0]):
            console.print(f"\n[bold]best[/]  {escape(best)}", soft_wrap=True, highlight=False)
        console.print(f"trials {counts_text(rows, 0)}", highlight=False)


def _named(row: Row) -> dict[str, Any]:
    """What a condition can ask for."""
    return row.choices | row.overrides | {"run.seed": row.seed}


def _same(value: Any, wanted: str) -> bool:
    """As the tables show it, or equal as numbers."""
    try:
        equal = not isinstance(value, bool) and float(value) == float(wanted)
    except (TypeError, ValueError):
        equal = False
    return equal or wanted in (str(value), value_text(value))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ray-diloco-results",
        description="Read what `ray-diloco -m` left: the best trials, what each setting did, what "
        "went wrong. With a second sweep, compare trials that have the same overrides.",
    )
    parser.add_argument("sweep", type=Path, help="the folder of a sweep (hydra.sweep.dir)")
    parser.add_argument("other", type=Path, nargs="?", help="a sweep to compare with")
    parser.add_argument(
        "--where", action="append", default=[], metavar="NAME=VALUE",
        help="only trials with this setting (its last word is enough), group or run.seed; may be "
        "given again",
    )  # fmt: skip
    parser.add_argument("--status", choices=[each.value for each in Status])
    parser.add_argument(
        "--objective", default="eval_loss", metavar="NAME[,NAME]",
        help="a number of result.json, the least is best; of several, also the front that no other "
        "trial beats in all",
    )  # fmt: skip
    parser.add_argument("--top", type=int, default=10, help="how many of the best to show")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write all columns there instead")
    return parser


if __name__ == "__main__":
    main()
