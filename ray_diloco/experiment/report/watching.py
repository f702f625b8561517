"""Draws a report again while its runs go on."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from ray_diloco.experiment.report.write import write_report
from ray_diloco.experiment.run_files import EVENTS, RESULT

LOOK_SECONDS = 3.0

Mark = tuple[tuple[int, bool], ...]
"""Of each run, how much it has recorded and whether it has ended."""


def watch(
    folders: Sequence[Path], target: Path, *, pause: Callable[[], object] | None = None
) -> None:
    """Returns when all runs have ended, with a page that does not reload itself any more.
    ``pause``: waits between two looks.
    """
    pause = pause or (lambda: threading.Event().wait(LOOK_SECONDS))
    drawn = mark_of(folders)
    while not all(ended for _, ended in drawn):
        pause()
        if (now := mark_of(folders)) != drawn:
            drawn = now
            write_report(folders, target, live=not all(ended for _, ended in now))
    write_report(folders, target)


def mark_of(folders: Sequence[Path]) -> Mark:
    return tuple(
        ((folder / EVENTS).stat().st_size, (folder / RESULT).is_file()) for folder in folders
    )
