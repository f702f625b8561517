import pytest

from ray_diloco.protocol.clock import Micros, micros
from ray_diloco.protocol.limits import reason_to_stop
from ray_diloco.protocol.run import RunLimits

ALL = RunLimits(max_steps=10, max_seconds=5.0, max_tokens=1000)


def reason(limits: RunLimits, *, steps=9, seconds=4.999999, tokens: int | None = 999):
    return reason_to_stop(limits, steps=steps, now=micros(seconds), tokens=tokens)


@pytest.mark.parametrize(
    ("reached", "setting"),
    [
        ({"steps": 10}, "max_steps"),
        ({"seconds": 5.0}, "max_seconds"),
        ({"tokens": 1000}, "max_tok"),
    ],
)
def test_the_first_of_the_three_limits_to_come_ends_the_run(reached, setting):
    assert reason(ALL) is None
    assert f"run.{setting}" in (reason(ALL, **reached) or "")


def test_who_does_not_know_all_tokens_leaves_their_limit_to_others():
    assert reason(ALL, tokens=None) is None
    assert reason_to_stop(RunLimits(), steps=10**9, now=Micros(10**15), tokens=10**12) is None
