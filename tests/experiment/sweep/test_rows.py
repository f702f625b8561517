import pytest

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.sweep.rows import ROWS, Row, RowBook, Status, latest, read_rows, swept


def row(trial: int = 0, **fields) -> Row:
    given = {"key": f"k{trial}", "attempt": 1, "status": Status.done} | fields
    return Row(trial=trial, **given)


def test_a_row_is_read_as_it_was_written(tmp_path):
    written = row(
        3,
        overrides={"diloco.outer_lr": 0.3, "cluster": "uniform", "cluster.node_ids": ["a", "b"]},
        choices={"cluster": "uniform"},
        duration=1.5,
        folder="3",
        numbers={"eval_loss": 2.5, "seed": 1, "nodes": {"n0": {"tokens": 8}}},
    )
    with RowBook(tmp_path) as book:
        book.append(written)
    assert read_rows(tmp_path) == [written]
    assert (written.eval_loss, written.seed) == (2.5, 1)


def test_a_number_that_json_lacks_is_no_loss(tmp_path):
    with RowBook(tmp_path) as book:
        book.append(row(numbers={"eval_loss": float("nan")}))
    (read,) = read_rows(tmp_path)
    assert read.eval_loss is None


def test_a_row_that_a_crash_cut_short_is_left_out_and_cut_off(tmp_path):
    with RowBook(tmp_path) as book:
        book.append(row(0))
    with (tmp_path / ROWS).open("a") as file:
        file.write('{"trial": 1, "key"')
    assert [each.trial for each in read_rows(tmp_path)] == [0]
    with RowBook(tmp_path) as book:
        book.append(row(2))
    assert [each.trial for each in read_rows(tmp_path)] == [0, 2]


def test_two_processes_do_not_write_one_table(tmp_path):
    with RowBook(tmp_path), pytest.raises(ConfigError, match="another process runs this sweep"):
        RowBook(tmp_path)


def test_a_folder_without_a_table_is_no_sweep(tmp_path):
    with pytest.raises(ConfigError, match="expected the folder of a sweep"):
        read_rows(tmp_path)


def test_the_last_attempt_at_a_trial_counts():
    rows = [row(1), row(0, status=Status.killed), row(0, attempt=2), row(2, status=Status.invalid)]
    assert [(each.trial, each.attempt) for each in latest(rows)] == [(0, 2), (1, 1), (2, 1)]


def test_what_differs_between_rows_was_swept():
    rows = [
        row(0, overrides={"experiment": "quickstart", "a.b": 1, "run.seed": 0}),
        row(1, overrides={"experiment": "quickstart", "a.b": 2, "run.seed": 1}),
        row(2, overrides={"experiment": "quickstart", "cluster": "flaky", "a.b": 1}),
    ]
    assert swept(rows) == {"a.b": [1, 2], "cluster": [None, "flaky"]}


def test_where_a_trial_ran_was_not_swept():
    places = [row(0), row(1, overrides={"ray.address": "auto", "hub.port": 1, "run.report": False})]
    assert swept(places) == {}


def test_only_what_came_to_its_end_is_settled():
    assert {each for each in Status if each.settled} == {Status.done, Status.pruned}
