import json
import re
from pathlib import Path

import pytest
from recorded import RESULT, write_run

from ray_diloco.experiment.report.sweep_figures import (
    front,
    heat_axes,
    heat_maps,
    pareto_figure,
)
from ray_diloco.experiment.report.sweep_records import read_sweep
from ray_diloco.experiment.report.write import document_of
from ray_diloco.experiment.sweep.rows import Row, RowBook, Status

LR, MOMENTUM, STEPS = "diloco.outer_lr", "diloco.outer_momentum", "diloco.inner_steps"


def row(trial: int, loss: float | None, *, status: Status = Status.done, **more) -> Row:
    """``overrides``: lr, momentum and inner steps by the trial's number."""
    lr, momentum, steps = 0.3 + 0.4 * (trial % 2), 0.5 * (trial // 2 % 2), 10 * (trial // 4 + 1)
    overrides = more.pop("overrides", {LR: lr, MOMENTUM: momentum, STEPS: steps})
    numbers = {**RESULT, "eval_loss": loss, "run_seconds": 10.0 + trial} if loss else {}
    return Row(
        trial=trial, key=str(trial), attempt=1, status=status, overrides=overrides,
        numbers=numbers, folder=str(trial), **more,
    )  # fmt: skip


def write_sweep(folder: Path, rows: list[Row], *, runs: int = 0) -> Path:
    with RowBook(folder) as book:
        for each in rows:
            book.append(each)
    for number in range(runs):
        write_run(folder / str(number))
    return folder


EIGHT = [row(trial, 2.0 + trial / 10) for trial in range(8)]


def test_there_is_a_heat_map_for_each_number_of_inner_steps(tmp_path):
    sweep = read_sweep(write_sweep(tmp_path, EIGHT))
    assert heat_axes(sweep) == (LR, MOMENTUM)
    maps = heat_maps(sweep, LR, MOMENTUM)
    assert list(maps) == ["inner_steps 10", "inner_steps 20"]
    drawn = maps["inner_steps 20"]["data"][0]
    assert (drawn["x"], drawn["y"]) == (["0.3", "0.7"], ["0", "0.5"])
    assert drawn["z"] == [[2.4, 2.5], [2.6, 2.7]]


@pytest.mark.parametrize(("worst", "scale"), [(2.7, None), (40.0, None), (40.1, "log")])
def test_a_trial_that_diverged_does_not_press_the_others_flat(tmp_path, worst, scale):
    rows = [row(trial, loss) for trial, loss in enumerate((2.0, 2.1, worst))]
    sweep = read_sweep(write_sweep(tmp_path, rows))
    places = [(float(each.trial), each.numbers["eval_loss"], each) for each in rows]
    drawn = pareto_figure(sweep, places, title="bytes")
    assert drawn["layout"]["yaxis"].get("type") == scale


def test_a_sweep_of_one_setting_has_no_heat_map(tmp_path):
    rows = [row(trial, 2.0, overrides={LR: trial / 10}) for trial in range(3)]
    assert heat_axes(read_sweep(write_sweep(tmp_path, rows))) is None


def test_a_cell_is_the_mean_over_seeds_and_empty_where_nothing_ended(tmp_path):
    place = {LR: 0.3, MOMENTUM: 0.0}
    rows = [
        row(0, 2.0, overrides={**place, "run.seed": 0}),
        row(1, 4.0, overrides={**place, "run.seed": 1}),
        row(2, 5.0, overrides={LR: 0.7, MOMENTUM: 0.5}),
    ]
    (drawn,) = heat_maps(read_sweep(write_sweep(tmp_path, rows)), LR, MOMENTUM).values()
    assert drawn["data"][0]["z"] == [[3.0, None], [None, 5.0]]


def test_the_front_holds_what_none_beats_in_both():
    assert front([(1, 5), (2, 6), (3, 4), (3, 3), (4, 3), (0.5, 9)]) == [5, 0, 3]


def test_the_page_has_every_part_and_names_what_failed(tmp_path):
    bad = row(8, None, status=Status.failed, error="loss is <nan>", traceback_file="8/trace.txt")
    html = document_of([write_sweep(tmp_path, [*EIGHT, bad], runs=3)]).to_html()
    titles = re.findall(r"<h2>(.*?)</h2>", html)
    assert titles == [
        *("Heat maps", "The best trials", "What it costs", "What each setting does", "Trials"),
        "Trials that did not end well",
    ]
    assert "loss is &lt;nan&gt;" in html
    assert "Trial 0 has the least eval_loss, 2.0000" in html
    figures = json.loads(re.findall(r'id="figures">(.*?)</script>', html)[0])
    assert len(figures) == 2 + 1 + 2 + 3


def test_a_trial_leads_to_its_own_report_where_there_is_one(tmp_path):
    folder = write_sweep(tmp_path, EIGHT, runs=1)
    (folder / "0" / "report.html").write_text("")
    html = document_of([folder]).to_html()
    assert re.findall(r'<a href="([^#"]*)"', html) == ["0/report.html"]


@pytest.mark.parametrize("rows", [[], [row(0, None, status=Status.invalid, error="no")]])
def test_a_sweep_without_any_number_can_be_drawn(tmp_path, rows):
    assert "<h2>Trials</h2>" in document_of([write_sweep(tmp_path, rows)]).to_html()


def test_the_latest_attempt_counts(tmp_path):
    failed = Row(trial=0, key="0", attempt=1, status=Status.killed)
    again = Row(trial=0, key="0", attempt=2, status=Status.done, numbers={"eval_loss": 1.5})
    sweep = read_sweep(write_sweep(tmp_path, [failed, again]))
    assert [(value, each.attempt) for value, each in sweep.valued] == [(1.5, 2)]


def test_a_page_of_many_trials_is_small(tmp_path):
    rows = [row(trial, 2.0 + trial / 10) for trial in range(24)]
    html = document_of([write_sweep(tmp_path, rows, runs=24)]).to_html()
    assert len(html.encode()) < 5_000_000
