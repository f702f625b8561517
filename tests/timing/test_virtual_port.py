import threading

import pytest

from ray_diloco.protocol.clock import Access, Compute, Idle, Micros, Sleep, Transfer, micros
from ray_diloco.timing.profile import NodeProfile
from ray_diloco.timing.virtual import VirtualClock

SECOND = micros(1)


def alone(profile=None):
    clock = VirtualClock(["a"])
    return clock, clock.port("a", profile=profile)


def iter_lane(*effects):
    results = []
    for effect in effects:
        results.append((yield effect))
    return results


def test_effects_take_the_time_they_say_and_utc_follows():
    _, port = alone(NodeProfile(up_mbps=8.0, down_mbps=4.0, latency_ms=5.0))
    times = []

    def lane():
        for effect in [
            Sleep(SECOND),
            Compute(micros(2)),
            Transfer("up", 1_000_000),
            Transfer("down", 1_000_000),
            Access(lambda: None),
        ]:
            yield effect
            times.append(port.now())

    port.start("x", lane())
    port.wait()
    assert times == [micros(t) for t in (1, 3, 4.005, 6.010, 6.010)]
    assert port.utc() == "2000-01-01T00:00:06.010000+00:00"


def test_steps_take_the_time_of_the_profile_and_lanes_run_beside_them():
    _, port = alone(NodeProfile(seconds_per_step=2.0))
    port.start("x", iter_lane(Sleep(micros(3))))
    port.before_step(1)
    port.after_step()
    assert (port.now(), port.collect()) == (micros(2), [])
    port.before_step(1)
    port.after_step()
    (outcome,) = port.collect()
    assert (port.now(), outcome.finished_at) == (micros(4), micros(3))


def test_outcomes_are_collected_in_the_order_in_which_they_finished():
    _, port = alone()
    for name, seconds in [("slow", 3), ("fast", 1), ("tie", 3)]:
        port.start(name, iter_lane(Sleep(micros(seconds))))
    port.wait()
    assert [o.name for o in port.collect()] == ["fast"]
    port.before_step(1)
    port.after_step()
    port.wait(micros(10))
    assert [(o.name, o.finished_at) for o in port.collect()] == [
        ("slow", micros(3)),
        ("tie", micros(3)),
    ]


def test_wait_ends_at_its_time_and_effects_due_then_are_done():
    clock, port = alone()
    done = []
    port.start("x", iter_lane(Sleep(SECOND), Access(lambda: done.append(clock.now())), Sleep(1)))
    port.wait(SECOND)
    assert (port.now(), done, port.collect()) == (SECOND, [SECOND], [])
    port.wait(Micros(5))
    assert port.now() == SECOND


def test_errors_of_calls_and_of_work_are_raised_in_the_lane():
    _, port = alone()

    def lane():
        with pytest.raises(ZeroDivisionError):
            yield Access(lambda: 1 / 0)
        with pytest.raises(KeyError):
            yield Compute(SECOND, lambda: {}["x"])
        assert (yield Compute(SECOND, lambda: 7)) == 7
        raise ValueError("end")

    port.start("x", lane())
    port.wait()
    (outcome,) = port.collect()
    assert isinstance(outcome.error, ValueError)
    assert outcome.finished_at == micros(2)


def test_a_name_runs_once_at_a_time_and_nothing_starts_on_a_closed_port():
    _, port = alone()
    port.start("x", iter_lane(Sleep(SECOND)))
    with pytest.raises(RuntimeError, match="still running"):
        port.start("x", iter_lane())
    port.close()
    port.close()
    with pytest.raises(RuntimeError, match="closed"):
        port.start("y", iter_lane())
    port.wait()
    assert port.collect() == []


def test_a_lane_that_starts_in_spite_of_a_promise_is_an_error():
    _, port = alone()
    port.before_step(3)
    port.after_step()
    with pytest.raises(RuntimeError, match="none was to start before 3000000"):
        port.start("x", iter_lane())


def test_a_lane_may_start_at_the_first_step_end_after_quiet_until():
    _, port = alone(NodeProfile(seconds_per_step=1.0))
    port.before_step(5, quiet_until=micros(1.5))
    port.after_step()
    port.before_step(4, quiet_until=micros(1.5))
    port.after_step()
    port.start("poll", iter_lane(Access(lambda: None)))
    port.collect()


def test_an_own_interrupt_ends_the_pause_under_way_and_one_wait():
    _, port = alone()
    port.start("x", iter_lane(Sleep(micros(9)), Sleep(micros(2)), Access(lambda: None)))
    port.wait(SECOND)
    port.interrupt()
    port.wait(micros(5))
    assert port.now() == SECOND
    port.wait(micros(5))
    assert [o.finished_at for o in port.collect()] == [micros(3)]
    port.wait(micros(7))
    assert port.now() == micros(7)


def test_an_interrupt_from_elsewhere_ends_a_wait_that_would_never_end():
    clock = VirtualClock(["a", "b"])
    port = clock.port("a")
    threading.Timer(0.02, port.interrupt).start()
    port.wait()
    assert port.now() == 0


def test_nobody_waits_for_who_has_left():
    clock = VirtualClock(["a", "b", "c"])
    clock.port("b").close()
    clock.port("c").close()
    port = clock.port("a")
    port.start("x", iter_lane(Access(lambda: 1)))
    port.wait()
    assert port.collect()[0].value == [1]


def test_ctrl_c_inside_a_lane_reaches_the_caller_and_the_port_can_be_closed():
    clock, port = alone()

    def press():
        raise KeyboardInterrupt

    def lane():
        yield Access(lambda: None)
        press()

    port.start("x", lane())
    port.start("y", iter_lane(Sleep(SECOND)))
    with pytest.raises(KeyboardInterrupt):
        port.wait()
    port.close()
    assert clock.utc() == "2000-01-01T00:00:00.000000+00:00"


def test_after_step_needs_a_step():
    _, port = alone()
    with pytest.raises(RuntimeError, match="without before_step"):
        port.after_step()


def test_an_idle_lane_goes_on_from_the_latest_look_of_the_one_before_it():
    clock, port = alone()
    port.start("round", iter_lane(Access(lambda: None, kind="look")))
    port.wait()
    port.collect()
    port.start("round", iter_lane(Idle(SECOND, until=micros(7.5))))
    port.start("write", iter_lane(Sleep(micros(4.5)), Access(lambda: None)))
    port.wait()
    port.wait()
    assert [(o.name, o.finished_at) for o in port.collect()] == [("write", micros(4.5))]
    port.wait()
    assert [(o.name, o.finished_at) for o in port.collect()] == [("round", micros(5))]
    assert clock.accesses == 2
