"""What a sweep says, against numbers that were added up by hand."""

import math

import pytest

from ray_diloco.experiment.sweep.effects import best_per_cluster, compared, effects, points
from ray_diloco.experiment.sweep.rows import Row, Status


def row(trial: int, loss: float, *, seed: int = 0, status: Status = Status.done, **point) -> Row:
    return Row(
        trial=trial,
        key=f"k{trial}",
        attempt=1,
        status=status,
        overrides={"run.seed": seed, **point},
        choices={"cluster": str(point.get("cluster", "uniform"))},
        numbers={"eval_loss": loss, "seed": seed, "tokens": 10 * trial},
    )


GRID = [
    row(0, 3.0, seed=0, lr=0.1, cluster="uniform"),
    row(1, 5.0, seed=1, lr=0.1, cluster="uniform"),
    row(2, 2.0, seed=0, lr=0.2, cluster="uniform"),
    row(3, 3.0, seed=1, lr=0.2, cluster="uniform"),
    row(4, 4.0, seed=0, lr=0.1, cluster="flaky"),
    row(5, 7.0, seed=0, lr=0.2, cluster="flaky"),
]


def test_points_have_the_mean_and_the_spread_of_their_seeds_and_the_best_comes_first():
    found = points(GRID, "eval_loss")
    assert [(point.settings["lr"], point.mean) for point in found] == [
        (0.2, 2.5),
        (0.1, 4.0),
        (0.1, 4.0),
        (0.2, 7.0),
    ]
    assert found[0].values == (2.0, 3.0)
    assert found[0].spread == pytest.approx(math.sqrt(0.5))
    assert found[3].spread is None


def test_an_effect_compares_trials_that_are_equal_in_all_else():
    (rate,) = [each for each in effects(GRID, "eval_loss") if each.setting == "lr"]
    first, second = rate.levels
    assert (first.value, first.mean, first.trials, first.difference) == (0.1, 4.0, 3, None)
    assert (second.value, second.mean, second.pairs) == (0.2, 4.0, 3)
    differences = (2.0 - 3.0, 3.0 - 5.0, 7.0 - 4.0)
    mean = sum(differences) / 3
    deviation = math.sqrt(sum((each - mean) ** 2 for each in differences) / 2)
    assert second.difference == pytest.approx(mean)
    assert second.error == pytest.approx(deviation / math.sqrt(3))


def test_the_strongest_effect_comes_first():
    assert [each.setting for each in effects(GRID, "eval_loss")] == ["cluster", "lr"]


def test_each_cluster_has_its_best_setting():
    found = best_per_cluster(GRID, "eval_loss")
    assert {name: (point.settings["lr"], point.mean) for name, point in found.items()} == {
        "uniform": (0.2, 2.5),
        "flaky": (0.1, 4.0),
    }


def test_any_number_of_the_result_can_be_the_objective():
    assert points(GRID, "tokens")[0].mean == 5.0


def test_trials_without_a_finite_value_count_nowhere():
    bad = [row(6, math.inf, lr=0.3), row(7, 1.0, lr=0.4, status=Status.killed)]
    assert points(bad, "eval_loss") == []
    assert effects(bad, "eval_loss") == []


def test_two_sweeps_are_compared_where_they_ran_the_same():
    theirs = [row(9, 2.5, seed=0, lr=0.1, cluster="uniform"), row(8, 1.0, seed=4, lr=0.1)]
    ((ours, other, difference),) = compared(GRID, theirs, "eval_loss")
    assert (ours.trial, other.trial, difference) == (0, 9, 0.5)
