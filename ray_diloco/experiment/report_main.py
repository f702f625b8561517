"""The command ``ray-diloco-report``: draws report.html again, from records."""

import argparse
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from ray_diloco.experiment.folders import require_place
from ray_diloco.experiment.one_line import one_line_errors
from ray_diloco.experiment.report.picture import picture_of
from ray_diloco.experiment.report.watching import watch
from ray_diloco.experiment.report.write import write_report
from ray_diloco.experiment.run_files import REPORT
from ray_diloco.unread import say

COMPARISON = "comparison.html"
"""Of several runs; in none of their folders, each of which has its own report."""


def main(words: Sequence[str] | None = None) -> None:
    """Exits with 0, 2 (a folder without a run, no browser) or 130 (Ctrl-C)."""
    with one_line_errors("ray-diloco-report"):
        given = _parser().parse_args(words)
        folders = [folder.expanduser() for folder in given.folders]
        target = given.output or (folders[0] / REPORT if len(folders) == 1 else Path(COMPARISON))
        if given.output is not None:
            require_place("--output", given.output)
        say(str(write_report(folders, target, live=given.watch).absolute()))
        if given.png:
            say(str(picture_of(target, target.with_suffix(".png")).absolute()))
        if given.open:
            webbrowser.open(target.absolute().as_uri())
        if given.watch:
            watch(folders, target)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ray-diloco-report",
        description="Draw report.html from the records of a run, of several runs beside each "
        "other, or of a sweep. The page needs no network.",
    )
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="folder", help="of a run or a sweep"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help=f"where to; by default {REPORT} in the folder, of several folders {COMPARISON} in the "
        "folder that you are in",
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="draw it again whenever something new is recorded, until all runs have ended; the "
        "page reloads itself",
    )
    parser.add_argument(
        "--png", action="store_true", help="also write a picture of the page; needs Chromium"
    )
    parser.add_argument("--open", action="store_true", help="show it in the browser")
    return parser
