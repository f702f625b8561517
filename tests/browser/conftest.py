"""Reports in a real browser."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pages import finished_run, finished_sweep

from ray_diloco.experiment.report.write import write_report

ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@pytest.fixture(scope="session")
def reports(tmp_path_factory) -> dict[str, Path]:
    """A page each of a run, of two runs, and of a sweep."""
    folder = tmp_path_factory.mktemp("reports")
    run, other = finished_run(folder / "run"), finished_run(folder / "other", seed=1)
    sweep = finished_sweep(folder / "sweep")
    return {
        "run": write_report([run], folder / "run.html"),
        "runs": write_report([run, other], folder / "runs.html"),
        "sweep": write_report([sweep], folder / "sweep.html"),
    }


@pytest.fixture(scope="session")
def browser() -> Iterator:
    """Debian's Chromium."""
    found = shutil.which("chromium")
    assert found is not None, "apt-get install chromium"
    from playwright.sync_api import sync_playwright  # of the extra dev

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found, args=list(ARGUMENTS))
        yield opened
        opened.close()


@pytest.fixture
def show(browser, reports) -> Iterator[Callable]:
    """Opens a report, drawn. At the end of the test it must have had no error, and asked for
    nothing but itself.
    """
    troubles: list[str] = []
    contexts = []

    def open_page(name: str, *, width: int = 1000, scheme: str = "light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("console", lambda said: troubles.append(said.text))
        page.on("request", lambda request: _note_request(request.url, troubles))
        page.goto(reports[name].as_uri())
        page.wait_for_selector("body[data-drawn]", timeout=60_000)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert troubles == []


def _note_request(url: str, troubles: list[str]) -> None:
    if not url.startswith(("file:", "data:", "blob:")):
        troubles.append(f"asked for {url}")
