import io

from rich.console import Console
from test_effects import GRID, row

from ray_diloco.experiment.sweep.last_words import counts_text, print_last_words
from ray_diloco.experiment.sweep.rows import ROWS, Status

BAD = [row(6, 9.0, lr=0.3, status=Status.killed), row(7, 9.0, lr=0.4, status=Status.interrupted)]


def words(rows, folder, total: int | None) -> str:
    shown = io.StringIO()
    print_last_words(rows, total, folder, "eval_loss", Console(file=shown, width=60))
    return shown.getvalue()


def test_the_last_words_name_the_best_point_the_files_and_the_folder(tmp_path):
    (tmp_path / ROWS).touch()
    lines = words(GRID, tmp_path, len(GRID)).splitlines()
    assert lines == [
        "",
        "        best  eval_loss 2.5 over 2 seeds in trials 2,3: lr=0.2 cluster=uniform",
        "      trials  6 of 6 done",
        "     results  results.jsonl",
        f"sweep folder  {tmp_path}",
    ]


def test_what_is_left_is_counted_and_can_be_gone_on_with(tmp_path):
    told = words([*GRID, *BAD], tmp_path, 10)
    assert "6 of 10 done, 1 interrupted, 1 killed, 2 not started" in told
    assert f"the same command with hydra.sweep.dir={tmp_path} sweep.resume=true" in told


def test_there_is_no_going_on_with_what_was_refused(tmp_path):
    refused = row(6, 9.0, lr=0.3, status=Status.invalid)
    assert "to go on" not in words([*GRID, refused], tmp_path, 7)
    assert "best" not in words([refused], tmp_path, 1)


def test_trials_that_were_ended_early_are_done():
    pruned = row(6, 9.0, lr=0.3, status=Status.pruned)
    assert counts_text([*GRID, pruned], 0) == "7 of 7 done (1 of them ended early)"
