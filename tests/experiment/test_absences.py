import pytest

from ray_diloco.experiment.absences import long_absences
from ray_diloco.experiment.build import complete


def told(small, profile: str, *overrides: str) -> list[str]:
    words = (f"cluster.profiles=[{{}}, {profile}]", "diloco.node_timeout=60", *overrides)
    return long_absences(complete(small("cluster.nodes=2", "time=virtual", *words)))


@pytest.mark.parametrize(
    ("profile", "line"),
    [
        ("{join_at: 61}", "n1 joins after 61 s (join_at)"),
        ("{crash_at: 5, recover_after: 61}", "n1 is back 61 s after its crash (recover_after)"),
        ("{away: [[1, 2], [5, 66]]}", "n1 is gone for 61 s from second 5 (away)"),
    ],
)
def test_an_absence_that_a_run_does_not_wait_for_is_told_with_its_numbers(small, profile, line):
    (found,) = told(small, profile)
    assert "diloco.node_timeout=60 s" in found
    assert found.endswith(line)


@pytest.mark.parametrize(
    "profile",
    [
        "{join_at: 60}",
        "{crash_at: 5}",
        "{crash_at: 5, recover_after: 60}",
        "{away: [[5, 65], [70, .inf]]}",
    ],
)
def test_a_shorter_absence_and_one_for_good_are_not_spoken_of(small, profile):
    assert told(small, profile) == []


def test_real_time_and_plain_training_have_no_script(small):
    assert told(small, "{join_at: 61}", "time.kind=wall") == []
    assert told(small, "{join_at: 61}", "run.role=single") == []
