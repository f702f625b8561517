from contextlib import closing

import pytest

from ray_diloco.errors import ConfigError
from ray_diloco.protocol.clock import Access, Micros, Sleep, micros
from ray_diloco.timing.churn import Outage, ScriptedCrash, joins_at, next_outage, outages
from ray_diloco.timing.profile import NodeProfile
from ray_diloco.timing.virtual import VirtualClock


def test_outages_come_in_order_from_both_ways_of_writing_them():
    profile = NodeProfile(crash_at=9.0, away=[[1.0, 2.0], [5.0, 6.5]])
    assert outages(profile) == (
        Outage(micros(1), micros(2)),
        Outage(micros(5), micros(6.5)),
        Outage(micros(9), None),
    )
    assert next_outage(profile, micros(2)) == Outage(micros(5), micros(6.5))
    assert next_outage(NodeProfile(crash_at=1.0, recover_after=2.0), Micros(0)) == Outage(
        micros(1), micros(3)
    )


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"crash_at": 0.0}, "crash_at"),
        ({"recover_after": 1.0}, "recover_after"),
        ({"join_at": 3.0, "leave_at": 3.0}, "leave_at"),
        ({"away": [[2.0, 1.0]]}, "away"),
        ({"away": [[1.0, 3.0], [2.0, 4.0]]}, "away"),
        ({"away": [[4.0, 8.0]], "crash_at": 5.0}, "crash_at"),
        ({"away": [[4.0, 8.0]], "crash_at": 8.0}, "crash_at"),
        ({"leave_at": 9.0, "crash_at": 9.5}, "crash_at"),
        ({"away": [[4.0, 8.0]], "crash_at": 3.0, "recover_after": 2.0}, "recover_after"),
        ({"away": [[4.0, 8.0]], "crash_at": 3.0}, "recover_after"),
    ],
)
def test_times_that_do_not_follow_each_other_are_refused(settings, name):
    with pytest.raises(ConfigError) as found:
        NodeProfile(**settings).check("n0")
    assert found.value.setting == f"cluster.nodes.n0.{name}"


def test_a_crash_between_stretches_of_absence_happens():
    away = [[1.0, 2.0], [5.0, 6.0]]
    NodeProfile(crash_at=3.0, recover_after=1.5, away=away, leave_at=9.0).check("n0")


def test_what_is_due_before_the_crash_happens_and_what_is_due_then_does_not():
    clock, done = VirtualClock(["a"]), []
    port = clock.port("a", profile=NodeProfile(crash_at=2.0, recover_after=3.0))

    def lane():
        for _ in range(5):
            yield Sleep(micros(0.5))
            yield Access(lambda: done.append(clock.now()))

    port.start("work", lane())
    with pytest.raises(ScriptedCrash) as crash:
        port.wait()
    assert done == [micros(0.5), micros(1), micros(1.5)]
    assert crash.value.back == micros(5)
    with closing(clock.port("a", profile=NodeProfile(crash_at=2.0, recover_after=3.0))) as second:
        assert second.now() == micros(5)
        second.start("work", (each for each in [Access(lambda: done.append(clock.now()))]))
        second.wait()
    assert done[-1] == micros(5)


def test_a_crash_within_a_step_ends_the_step():
    clock = VirtualClock(["a"])
    port = clock.port("a", profile=NodeProfile(seconds_per_step=1.0, crash_at=2.5))
    for _ in range(2):
        port.before_step(10)
        port.after_step()
    port.before_step(10)
    with pytest.raises(ScriptedCrash) as crash:
        port.after_step()
    assert crash.value.back is None


def test_a_run_that_goes_on_has_the_machines_that_are_there_then():
    profile = NodeProfile(join_at=5.0, away=[[10.0, 20.0]], crash_at=30.0)
    since = {second: joins_at(profile, since=micros(second)) for second in (0, 7, 10, 15, 20, 40)}
    assert since == {
        0: micros(5),
        7: micros(7),
        10: micros(20),
        15: micros(20),
        20: micros(20),
        40: micros(40),
    }
    assert joins_at(None, since=micros(3)) == micros(3)
