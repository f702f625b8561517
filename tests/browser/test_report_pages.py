"""Needs Chromium (Debian: apt-get install chromium). ``REPORT_SCREENSHOTS=<folder>`` keeps the
pictures.
"""

import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from ray_diloco.experiment.report.picture import WIDTH, picture_of

expect = pytest.importorskip(
    "playwright.sync_api", reason="needs the extra dev; runs in .ci/run"
).expect

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

UNNAMED = r"\s*- (?:button|searchbox|radio|link|region)(?: \[.*\])?:?"
AXIS_TITLE = ".plot .xtitle"
NUMBER_ALL = """() => {
    const all = [...document.querySelectorAll(
        "a[href], button, input[type=search], input:checked, summary, [tabindex='0']")]
        .filter((each) => each.checkVisibility());
    all.forEach((each, nth) => { each.dataset.nth = nth; });
    return all.length;
}"""
"""Of the choices of a switch the Tab key reaches the chosen one, and arrows the others."""
WIDER = "() => document.documentElement.scrollWidth > window.innerWidth"


def test_the_switch_draws_the_loss_over_everything_by_mouse_and_by_keys(show):
    page = show("run")
    expect(page.locator(AXIS_TITLE).first).to_have_text("virtual time (seconds)")
    page.locator(".switch span", has_text="tokens").click()
    expect(page.locator(AXIS_TITLE).first).to_have_text("tokens merged")
    xs = page.evaluate("() => [...document.querySelector('.plot').data[0].x]")
    assert xs[:3] == [0, 5000, 10000]
    page.keyboard.press("ArrowRight")
    expect(page.locator(AXIS_TITLE).first).to_have_text("megabytes of deltas merged")


def test_the_choice_outlives_a_reload(show):
    page = show("run")
    page.locator(".switch span", has_text="outer step").click()
    page.reload()
    page.wait_for_selector("body[data-drawn]")
    expect(page.locator(AXIS_TITLE).first).to_have_text("outer step")


def test_the_whole_page_becomes_a_picture(reports, tmp_path):
    png = picture_of(reports["run"], tmp_path / "run.png").read_bytes()
    width, height = struct.unpack(">II", png[16:24])
    assert width == WIDTH
    assert height > 1500


def losses(page) -> list[float]:
    """The column of the objective, of the rows that can be seen."""
    script = """() => [...document.querySelectorAll('table.sorts tbody tr')]
        .filter((row) => !row.hidden).map((row) => row.cells[6].dataset.value ?? 'none')"""
    return [float(each) if each != "none" else float("inf") for each in page.evaluate(script)]


def test_a_heading_sorts_the_table_both_ways_and_what_is_missing_stays_last(show):
    page = show("sweep")
    heading = page.get_by_role("button", name="eval_loss")
    heading.focus()
    page.keyboard.press("Enter")
    upwards = losses(page)
    assert upwards == sorted(upwards)
    assert upwards[-2:] == [float("inf")] * 2
    heading.click()
    downwards = losses(page)
    assert downwards[:22] == upwards[:22][::-1]
    assert downwards[-2:] == [float("inf")] * 2
    sorts = page.locator("th[aria-sort]")
    assert [each.get_attribute("aria-sort") for each in sorts.all()] == ["descending"]


def test_words_filter_the_table(show):
    page = show("sweep")
    assert len(losses(page)) == 24
    page.get_by_role("searchbox").fill("failed")
    assert losses(page) == [float("inf")] * 2
    page.get_by_role("searchbox").fill("")
    assert len(losses(page)) == 24


@pytest.mark.parametrize("name", ["run", "runs", "sweep"])
def test_everything_that_can_be_used_is_reached_by_the_tab_key(show, name):
    page = show(name)
    wanted = page.evaluate(NUMBER_ALL)
    reached = set()
    for _ in range(2 * wanted):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("() => document.activeElement.dataset.nth"))
    assert reached - {None} == {str(nth) for nth in range(wanted)}


@pytest.mark.parametrize("name", ["run", "runs", "sweep"])
def test_every_figure_and_field_has_a_name_that_is_read_out(show, name):
    page = show(name)
    told = page.locator("#main").aria_snapshot()
    unnamed = [line for line in told.splitlines() if re.fullmatch(UNNAMED, line)]
    assert unnamed == []
    named = re.findall(r"\s*- '?img \"", told)
    assert len(named) == page.locator(".plot").count() > 0


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_figures_have_the_colours_of_the_page(show, scheme, dark):
    page = show("run", scheme=scheme)
    colour = page.evaluate("() => document.querySelector('.plot').layout.font.color")
    assert (int(colour[1:3], 16) > 128) == dark


def test_what_is_printed_is_dark_on_white_without_buttons(show):
    page = show("run", scheme="dark")
    page.emulate_media(media="print")
    expect(page.locator(AXIS_TITLE).first).to_have_css("fill", "rgb(0, 0, 0)")
    assert not page.locator(".switch").is_visible()
    assert page.pdf(format="A4")[:4] == b"%PDF"


@pytest.mark.parametrize("name", ["run", "runs", "sweep"])
@pytest.mark.parametrize("width", [400, 1000, 1600])
def test_nothing_is_cut_off_at_any_width(show, tmp_path, name, width):
    page = show(name, width=width)
    assert not page.evaluate(WIDER)
    folder = Path(os.environ.get("REPORT_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    picture = page.screenshot(path=folder / f"{name}_{width}.png", full_page=True)
    assert len(picture) > 50_000
    assert page.locator(".plot .main-svg").count() >= page.locator(".plot").count()


@pytest.mark.slow
def test_the_picture_of_the_readme_is_drawn_by_its_command(tmp_path):
    command = [sys.executable, ROOT / "docs" / "draw_timeline.py", tmp_path / "timeline.png"]
    subprocess.run(command, check=True)
    drawn, shown = (
        struct.unpack(">II", path.read_bytes()[16:24])
        for path in (tmp_path / "timeline.png", ROOT / "docs" / "timeline.png")
    )
    assert drawn == shown
