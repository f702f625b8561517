import csv
import io
import sys

import pyarrow.parquet
import pytest
from rich.console import Console
from test_effects import GRID, row

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.sweep.answer import print_answer
from ray_diloco.experiment.sweep.results_main import chosen, main
from ray_diloco.experiment.sweep.rows import RowBook, Status
from ray_diloco.experiment.sweep.table import write_table


@pytest.fixture
def results(monkeypatch, tmp_path, capsys):
    """Call ``ray-diloco-results`` on the grid; gives exit code, output and errors."""
    with RowBook(tmp_path / "grid") as book:
        for each in [*GRID, row(6, 9.0, lr=0.3, status=Status.killed)]:
            book.append(each)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ray-diloco-results", str(tmp_path / "grid"), *words])
        monkeypatch.setenv("COLUMNS", "200")
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        told = capsys.readouterr()
        return code, told.out, told.err

    return call


def test_it_prints_the_answer_and_what_went_wrong(results):
    code, out, err = results()
    assert (code, err) == (0, "")
    for text in (
        "best points",
        "effect of lr",
        "best setting for each cluster",
        "6 of 7 done, 1 killed",
    ):
        assert text in out
    assert "trial 6 killed" in out
    assert "best  eval_loss 2.5 over 2 seeds in trials 2,3: lr=0.2 cluster=uniform" in out


def test_it_shows_only_what_was_asked_for(results):
    _, out, _ = results("--where", "cluster=flaky", "--where", "lr=0.2")
    assert "1 of 1 done" in out
    code, _, err = results("--where", "cluster=nope")
    assert code == 2
    assert "expected one of uniform, flaky" in err or "expected one of flaky, uniform" in err
    _, out, _ = results("--status", "killed")
    assert "0 of 1 done, 1 killed" in out


def test_it_exports_every_setting_and_number(results, tmp_path):
    _, out, _ = results("--csv", str(tmp_path / "out.csv"))
    assert "7 trials in" in out
    lines = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert len(lines) == 7
    assert (lines[0]["lr"], lines[0]["result.eval_loss"], lines[0]["cluster"]) == (
        "0.1", "3", "uniform"
    )  # fmt: skip


def test_it_compares_two_sweeps(results, tmp_path):
    with RowBook(tmp_path / "other") as book:
        book.append(row(0, 2.5, seed=0, lr=0.1, cluster="uniform"))
        book.append(row(1, 5.5, seed=1, lr=0.1, cluster="uniform"))
    _, out, _ = results(str(tmp_path / "other"))
    assert "eval_loss of 2 trials in both" in out
    assert "+0.5000" in out
    assert "-0.5000" in out


def test_a_folder_that_is_no_sweep_is_one_line(results, tmp_path):
    code, out, err = results(str(tmp_path / "nowhere"))
    assert (code, out) == (2, "")
    assert err.startswith("ray-diloco-results: sweep=")


def test_a_condition_that_no_trial_has_is_refused():
    with pytest.raises(ConfigError, match="expected name=value of a swept setting"):
        chosen(GRID, ["diloco.outer_lr=1"], None)
    with pytest.raises(ConfigError, match=r"did you mean cluster\?"):
        chosen(GRID, ["clustr=flaky"], None)


def test_a_condition_takes_names_and_values_as_the_tables_show_them():
    rows = [row(0, 1.0, **{"diloco.outer_lr": 1.0}), row(1, 2.0, **{"diloco.outer_lr": 0.3})]
    for condition in ("diloco.outer_lr=1", "diloco.outer_lr=1.0", "outer_lr=1"):
        assert [each.trial for each in chosen(rows, [condition], None)] == [0]
    with pytest.raises(ConfigError, match=r"expected one of 1\.0, 0\.3"):
        chosen(rows, ["outer_lr=2"], None)
    alike = [row(0, 1.0, **{"inner.lr": 1.0, "outer.lr": 1.0})]
    with pytest.raises(ConfigError, match="expected name=value of a swept setting"):
        chosen(alike, ["lr=1"], None)


def test_an_objective_that_no_trial_has_is_refused_with_the_nearest(results):
    code, out, err = results("--objective", "eval_loss,tokns")
    assert (code, out) == (2, "")
    assert "--objective='tokns': expected a number of result.json; did you mean tokens?" in err


def test_the_table_keeps_types_and_writes_mixed_values_as_text(tmp_path):
    rows = [row(0, 1.0, lr=0.1, n=None), row(1, 2.0, lr=1, n="a"), row(2, 3.0, lr=0.2, n=[1])]
    write_table(rows, tmp_path / "results.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "results.parquet").to_pydict()
    assert table["lr"] == [0.1, 1.0, 0.2]
    assert table["n"] == [None, "a", "[1]"]
    assert table["result.tokens"] == [0, 10, 20]


def test_an_answer_without_a_single_value_says_what_went_wrong():
    out = io.StringIO()
    bad = [row(0, 1.0, lr=0.1, status=Status.failed), row(1, 1.0, lr=0.2, status=Status.failed)]
    print_answer(bad, "eval_loss", 10, Console(file=out, width=120))
    assert "trial 1 failed: lr=0.2" in out.getvalue()
    assert "best" not in out.getvalue()


def test_of_several_objectives_it_shows_the_front(results):
    _, out, _ = results("--objective", "eval_loss,seed")
    assert "best for eval_loss and seed" in out
    assert "best for" not in results()[1]
