import pytest

import ray_diloco
from ray_diloco.errors import UsageError
from ray_diloco.experiment.sweep.rows import Row, RowBook, Status


@pytest.fixture
def folder(tmp_path):
    with RowBook(tmp_path) as book:
        for trial, lr in enumerate((0.3, 0.7)):
            ended = Status.done if trial == 0 else Status.failed
            numbers = {"eval_loss": 2.5} if trial == 0 else {}
            overrides = {"diloco.outer_lr": lr}
            book.append(
                Row(trial=trial, key=str(trial), attempt=1, status=ended, overrides=overrides,
                    numbers=numbers)
            )  # fmt: skip
    return tmp_path


def test_a_sweep_is_a_table_with_a_row_for_each_trial(folder):
    sweep = ray_diloco.load_sweep(folder)
    assert [row.status.value for row in sweep.rows] == ["done", "failed"]
    frame = sweep.frame()
    assert list(frame["diloco.outer_lr"]) == [0.3, 0.7]
    assert frame["result.eval_loss"][0] == sweep.table()["result.eval_loss"][0].as_py() == 2.5


def test_a_folder_without_a_sweep_is_named(tmp_path):
    with pytest.raises(UsageError, match="expected the folder of a sweep"):
        ray_diloco.load_sweep(tmp_path)


@pytest.mark.slow
def test_a_sweep_of_what_does_not_exist_says_so(tmp_path):
    with pytest.raises(UsageError, match="did you mean diloco"):
        ray_diloco.sweep(["diloco.outer_rl=0.3,0.7"], folder=tmp_path / "sweep")


@pytest.mark.ray
@pytest.mark.slow
def test_a_sweep_of_a_program_has_what_the_command_has(tmp_path):
    small = ["debug=default", "data=synthetic", "data.synthetic_bytes=20000", "hub=memory"]
    words = [*small, "run.max_steps=4", "diloco.inner_steps=2", "diloco.outer_lr=0.3,0.7"]
    sweep = ray_diloco.sweep(words, folder=tmp_path / "a folder")
    assert [row.status.value for row in sweep.rows] == ["done", "done"]
    assert len(sweep.results) == 2
    assert "effect of diloco.outer_lr" in sweep.figures()
    assert (sweep.folder / "report.html").exists()
