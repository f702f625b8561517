"""A report as a picture, by a browser that is installed here."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from ray_diloco.errors import UsageError

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDTH = 1200
_QUIET = (
    *("--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--virtual-time-budget=30000",  # milliseconds of the page's own time, for all to be drawn
)
_HEIGHT = re.compile(r'data-height="(\d+)"')


def picture_of(report: Path, target: Path) -> Path:
    """The whole page as a PNG. UsageError without a Chromium, or when it fails."""
    url = report.absolute().as_uri()
    found = _HEIGHT.search(_browse(f"--window-size={WIDTH},300", "--dump-dom", url))
    if found is None:
        raise UsageError(f"{report}: the browser did not draw it")
    _browse(f"--window-size={WIDTH},{found[1]}", f"--screenshot={target.absolute()}", url)
    if not target.is_file():
        raise UsageError(f"{target}: the browser wrote nothing")
    return target


def _browse(*words: str) -> str:
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        raise UsageError(f"a picture needs a browser; expected one of {', '.join(BROWSERS)}")
    rights = ["--no-sandbox"] if os.geteuid() == 0 else []  # it refuses root otherwise
    try:
        ended = subprocess.run(
            [browser, *_QUIET, *rights, *words],
            capture_output=True,
            text=True,
            check=True,
            timeout=180,
        )
    except subprocess.SubprocessError as error:
        raise UsageError(f"{browser} failed: {error}") from None
    return ended.stdout
