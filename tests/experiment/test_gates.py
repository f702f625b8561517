import math

import pytest

from ray_diloco.experiment.gates import Gate, gates_table, judge, runs_table


def row(*losses, seconds=10.0):
    """One run by seed."""
    return {
        seed: {"eval_loss": loss, "run_seconds": seconds, "status": "done"}
        for seed, loss in enumerate(losses)
    }


def judged(gate, **rows):
    (finding,) = judge([Gate(says="it holds", **gate)], rows)
    return finding


@pytest.mark.parametrize(("below", "verdict"), [(0.16, "pass"), (0.14, "fail")])
def test_the_mean_of_the_differences_by_seed_is_held_against_the_limit(below, verdict):
    gate = {"runs": ["a"], "minus": ["b"], "below": below}
    finding = judged(gate, a=row(2.1, 2.2), b=row(2.0, 2.0))
    assert finding.verdict == verdict
    assert finding.mean == pytest.approx(0.15)
    assert list(finding.differences) == [0, 1]


def test_a_difference_must_lie_between_both_limits():
    gate = {"runs": ["a"], "minus": ["b"], "above": 0.05, "below": 0.3}
    assert judged(gate, a=row(2.1), b=row(2.0)).verdict == "pass"
    assert judged(gate, a=row(2.01), b=row(2.0)).verdict == "fail"
    assert judged(gate, a=row(2.4), b=row(2.0)).verdict == "fail"


def test_of_several_runs_the_best_of_each_seed_counts():
    gate = {"runs": ["a", "b"], "minus": ["c", "d"], "below": 0.0}
    rows = {"a": row(2.0, 3.0), "b": row(3.0, 2.0), "c": row(2.5, 2.4), "d": row(2.1, 9.0)}
    finding = judged(gate, **rows)
    assert finding.differences == pytest.approx({0: -0.1, 1: -0.4})
    assert finding.verdict == "pass"


@pytest.mark.parametrize("loss", [math.nan, math.inf, None])
def test_a_run_that_diverged_is_infinitely_worse(loss):
    rows = {"a": row(loss), "b": row(2.0)}
    assert judged({"runs": ["a"], "minus": ["b"], "above": 1.0}, **rows).verdict == "pass"
    assert judged({"runs": ["a"], "minus": ["b"], "below": 1.0}, **rows).verdict == "fail"


def test_nothing_holds_against_a_run_that_diverged():
    rows = {"a": row(2.0), "b": row(math.nan)}
    assert judged({"runs": ["a"], "minus": ["b"], "below": 1.0}, **rows).verdict == "fail"
    assert judged({"runs": ["a"], "minus": ["b"], "above": -1.0}, **rows).verdict == "fail"


def test_a_run_is_held_against_its_fastest_node_alone():
    rows = {"a": {0: {"eval_loss": 2.0, "run_seconds": 1.0, "alone_eval_loss": 2.1}}}
    gate = {"runs": ["a"], "minus_alone": True}
    finding = judged({**gate, "below": -0.05}, **rows)
    assert (finding.verdict, finding.mean) == ("pass", pytest.approx(-0.1))
    assert judged({**gate, "below": -0.15}, **rows).verdict == "fail"
    assert judged({**gate, "below": -0.05}, a=row(2.0)).verdict == "fail"  # it was not asked for


def test_without_anything_to_take_off_the_loss_itself_counts():
    assert judged({"runs": ["a"], "above": 3.0}, a=row(3.5)).verdict == "pass"


def test_the_time_must_be_a_small_enough_share_too():
    gate = {"runs": ["a"], "minus": ["b"], "below": 0.1, "time_below": 0.6}
    slow = judged(gate, a=row(2.0, seconds=7.0), b=row(2.0))
    assert (slow.verdict, slow.time_share) == ("fail", 0.7)
    assert judged(gate, a=row(2.0, seconds=5.0), b=row(2.0)).verdict == "pass"


def test_a_gate_without_all_its_runs_was_not_run():
    assert judged({"runs": ["a"], "minus": ["b"], "below": 1.0}, a=row(2.0)).verdict == "not run"
    assert judged({"runs": ["a"], "minus": ["b"], "below": 1.0}, a={}, b={}).verdict == "not run"


def test_only_seeds_that_all_runs_have_are_compared():
    finding = judged({"runs": ["a"], "minus": ["b"], "below": 1.0}, a=row(2.0, 2.1), b=row(2.0))
    assert list(finding.differences) == [0]


def test_the_tables_have_a_line_for_each_gate_and_each_run():
    gate = Gate(says="a is better", runs=["a"], minus=["b"], below=0.0, time_below=1.0)
    other = Gate(says="c is", runs=["c"], below=0.0)
    rows = {"a": row(1.9, seconds=5.0), "b": row(2.0)}
    table = gates_table(judge([gate, other], rows))
    assert "| a is better | -0.100 | -0.100 in 0.50 of the time | pass |" in table
    assert "| c is |  |  | not run |" in table
    assert "| a | 1.900 | 5 | 0 | done |" in runs_table(rows)
