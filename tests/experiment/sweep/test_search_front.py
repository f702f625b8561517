import io

from rich.console import Console

from ray_diloco.experiment.sweep.answer import print_answer
from ray_diloco.experiment.sweep.rows import Row, Status
from ray_diloco.experiment.sweep.search_front import beats, front, print_front

OBJECTIVES = ("eval_loss", "run_seconds")


def row(trial: int, loss: float | None, seconds: float, seed: int = 0, **fields) -> Row:
    given = {
        "trial": trial,
        "key": str(trial),
        "attempt": 1,
        "status": Status.done,
        "overrides": {"diloco.outer_lr": seconds, "run.seed": seed},
        "numbers": {"eval_loss": loss, "run_seconds": seconds, "seed": seed},
    }
    return Row(**given | fields)


def test_one_beats_another_that_is_nowhere_better_and_somewhere_worse():
    assert beats((1.0, 2.0), (1.0, 3.0))
    assert not beats((1.0, 3.0), (1.0, 3.0))
    assert not beats((1.0, 3.0), (2.0, 2.0))


def test_the_front_has_what_no_other_point_beats_in_all_objectives():
    rows = [row(0, 3.0, 10.0), row(1, 2.0, 20.0), row(2, 2.5, 25.0), row(3, 1.0, 30.0)]
    assert [each.trials for each in front(rows, OBJECTIVES)] == [(3,), (1,), (0,)]


def test_a_trial_that_did_not_end_well_or_lacks_an_objective_is_not_on_it():
    rows = [row(0, 3.0, 10.0), row(1, None, 5.0), row(2, 1.0, 1.0, status=Status.pruned)]
    assert [each.trials for each in front(rows, OBJECTIVES)] == [(0,)]


def test_a_point_of_several_seeds_counts_by_its_means():
    rows = [row(0, 1.0, 10.0, 0), row(1, 3.0, 10.0, 1), row(2, 1.5, 20.0, 0), row(3, 1.7, 20.0, 1)]
    found = front(rows, OBJECTIVES)
    assert [(each.trials, each.values) for each in found] == [
        ((2, 3), (1.6, 20.0)), ((0, 1), (2.0, 10.0))
    ]  # fmt: skip


def test_the_front_is_shown_with_its_settings():
    shown = io.StringIO()
    rows = [row(0, 3.0, 10.0), row(1, 2.0, 20.0)]
    print_front(rows, OBJECTIVES, Console(file=shown, width=100))
    assert "best for eval_loss and run_seconds" in shown.getvalue()
    assert "outer_lr" in shown.getvalue()
    empty = io.StringIO()
    print_front([], OBJECTIVES, Console(file=empty))
    assert empty.getvalue() == ""


def test_the_effect_of_a_setting_is_told_unless_each_of_many_values_was_tried_once():
    def answer(rows: list[Row]) -> str:
        shown = io.StringIO()
        print_answer(rows, "eval_loss", 3, Console(file=shown, width=100))
        return shown.getvalue()

    once = [row(trial, float(trial), float(trial)) for trial in range(4)]
    twice = [row(trial, float(trial), trial % 2 + 0.5) for trial in range(4)]
    assert "effect of" not in answer(once)
    assert "effect of diloco.outer_lr" in answer(once[:3])
    assert "effect of diloco.outer_lr" in answer(twice)
