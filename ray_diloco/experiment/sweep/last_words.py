"""What a sweep says at its end, whatever came of it: the best, the count, and where it all lies."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from ray_diloco.experiment.run_files import REPORT
from ray_diloco.experiment.sweep.answer import best_text
from ray_diloco.experiment.sweep.rows import ROWS, Row, Status
from ray_diloco.experiment.sweep.table import TABLE


def print_last_words(
    rows: Sequence[Row], total: int | None, folder: Path, objective: str, console: Console
) -> None:
    """``rows``: those that count. ``total``: trials of the sweep, where that is known."""
    best, missing = best_text(rows, objective), max((total or 0) - len(rows), 0)
    kept = [name for name in (ROWS, TABLE, REPORT) if (folder / name).exists()]
    again = f"the same command with hydra.sweep.dir={folder} sweep.resume=true"
    lines = {
        "best": best,
        "trials": counts_text(rows, missing),
        "to go on": again if may_go_on(rows, missing) else None,
        "results": ", ".join(kept),
        "sweep folder": str(folder),
    }
    console.print()
    for name, text in lines.items():
        if text:
            console.print(f"[bold]{name:>12}[/]  {escape(text)}", soft_wrap=True, highlight=False)


def counts_text(rows: Sequence[Row], missing: int) -> str:
    """``16 of 24 done, 2 interrupted, 6 not started``."""
    done = sum(row.status.settled for row in rows)
    pruned = sum(row.status is Status.pruned for row in rows)
    counts = Counter(row.status.value for row in rows if not row.status.settled)
    others = [f"{count} {status}" for status, count in sorted(counts.items())]
    others += [f"{missing} not started"] if missing else []
    early = f" ({pruned} of them ended early)" if pruned else ""
    return ", ".join([f"{done} of {len(rows) + missing} done{early}", *others])


def may_go_on(rows: Sequence[Row], missing: int) -> bool:
    """There is something left that could come to its end: what was refused is refused again."""
    return missing > 0 or any(
        not row.status.settled and row.status is not Status.invalid for row in rows
    )
