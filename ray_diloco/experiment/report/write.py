"""Reads, draws and writes a report."""

import logging
from collections.abc import Sequence
from pathlib import Path

from ray_diloco.experiment.report.document import Document
from ray_diloco.experiment.report.run_page import run_page, runs_page
from ray_diloco.experiment.report.run_records import read_run
from ray_diloco.experiment.report.sweep_page import sweep_page
from ray_diloco.experiment.report.sweep_records import is_sweep_folder, read_sweep
from ray_diloco.experiment.run_files import REPORT

logger = logging.getLogger(__name__)


def document_of(folders: Sequence[Path]) -> Document:
    """The page of one run, of several, or of a sweep. ConfigError for a folder that holds none."""
    if len(folders) == 1 and is_sweep_folder(folders[0]):
        return sweep_page(read_sweep(folders[0]))
    runs = [read_run(folder) for folder in folders]
    return run_page(runs[0]) if len(runs) == 1 else runs_page(runs)


def write_report(folders: Sequence[Path], target: Path, *, live: bool = False) -> Path:
    """Write the page to ``target``, whole or not at all. ``live``: it reloads itself."""
    text = document_of(folders).to_html(live=live)
    partial = target.with_name(f"{target.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(target)
    return target


def report_if_possible(folder: Path) -> str | None:
    """At the end of a run or a sweep, whose result never depends on its picture. Gives what went
    wrong, if something did.
    """
    try:
        write_report([folder], folder / REPORT)
    except Exception as error:
        logger.warning("%s: no report could be drawn", folder, exc_info=True)
        return f"warning: no report could be drawn: {type(error).__name__}: {error}"
    return None
