import contextlib
import threading
import time

import pytest

from ray_diloco.protocol.clock import Access, Compute, Idle, Micros, Sleep, Transfer, micros
from ray_diloco.timing.profile import NodeProfile
from ray_diloco.timing.wall import WallClock, WallPort

HOUR = micros(3600)
FEW_SECONDS = micros(20)


def outcomes(port, count=1):
    found = []
    deadline = Micros(port.now() + FEW_SECONDS)
    while len(found) < count and port.now() < deadline:
        port.wait(deadline)
        found += port.collect()
    return found


def lane_of(*effects):
    results = []
    for effect in effects:
        results.append((yield effect))
    return results


def test_a_lane_gets_the_result_of_its_access_and_its_value_is_collected():
    port = WallPort()
    port.start("poll", lane_of(Access(lambda: 7), Compute(HOUR), Transfer("up", 10**15)))
    (outcome,) = outcomes(port)
    assert (outcome.name, outcome.value, outcome.error) == ("poll", [7, None, None], None)
    assert 0 < outcome.finished_at <= port.now()
    assert port.collect() == []


def test_an_error_of_an_access_is_raised_in_the_lane():
    def lane():
        try:
            yield Access(lambda: 1 / 0)
        except ZeroDivisionError:
            return (yield Access(lambda: "caught"))

    port = WallPort()
    port.start("poll", lane())
    assert outcomes(port)[0].value == "caught"


@pytest.mark.parametrize("raised", [ValueError("no"), SystemExit(3)])
def test_what_a_lane_raises_becomes_the_error_of_its_outcome(raised):
    def lane():
        yield Access(lambda: None)
        raise raised

    port = WallPort()
    port.start("round", lane())
    (outcome,) = outcomes(port)
    assert outcome.value is None
    assert isinstance(outcome.error, Exception)
    assert raised in (outcome.error, outcome.error.__cause__)


def test_a_lane_of_a_name_runs_once_at_a_time_and_may_start_again_when_it_has_finished():
    gate = threading.Event()
    port = WallPort()
    port.start("poll", lane_of(Access(gate.wait)))
    with pytest.raises(RuntimeError, match="'poll' is still running"):
        port.start("poll", lane_of())
    gate.set()
    outcomes(port)
    port.start("poll", lane_of())
    assert outcomes(port)[0].value == []


def test_no_outcome_is_lost_when_many_lanes_end_at_once():
    port = WallPort()
    together = threading.Barrier(20)
    for index in range(20):
        port.start(f"lane{index}", lane_of(Access(together.wait)))
    found = outcomes(port, 20)
    assert {outcome.name for outcome in found} == {f"lane{index}" for index in range(20)}
    assert [o.finished_at for o in found] == sorted(o.finished_at for o in found)


def test_an_interrupt_ends_the_present_wait_and_pause_but_no_later_pause():
    port = WallPort()
    port.start("retry", lane_of(Sleep(HOUR), Sleep(Micros(3000))))
    threading.Timer(0.01, port.interrupt).start()
    port.wait(HOUR)
    before = port.now()
    assert outcomes(port)[0].finished_at >= before + 2000
    assert port.now() < HOUR


def test_an_interrupt_that_meets_no_pause_ends_the_next_one_of_a_lane():
    port = WallPort()
    gate = threading.Event()
    port.start("round", lane_of(Access(gate.wait), Sleep(HOUR)))
    port.interrupt()
    gate.set()
    assert outcomes(port)[0].finished_at < HOUR


def test_an_interrupt_that_no_wait_expects_ends_the_next_one_and_only_that():
    port = WallPort()
    port.interrupt()
    port.wait(HOUR)
    before = port.now()
    port.wait(Micros(before + 2000))
    assert before + 2000 <= port.now() < HOUR


def test_wait_returns_at_its_time_when_nothing_happens():
    port = WallPort()
    until = Micros(port.now() + 3000)
    port.wait(until)
    assert port.now() >= until
    port.wait(Micros(0))


def test_close_is_bounded_in_time_and_says_which_lanes_were_given_up():
    gate = threading.Event()
    port = WallPort()
    port.start("stuck", lane_of(Access(gate.wait), Sleep(HOUR)))
    port.start("asleep", lane_of(Sleep(HOUR), Access(lambda: None)))
    port.close(timeout=0.05)
    port.close(timeout=0.0)
    gate.set()
    found = outcomes(port, 2)
    assert {o.name for o in found} == {"stuck", "asleep"}
    assert all("given up" in str(o.error) for o in found)
    with pytest.raises(RuntimeError, match="closed"):
        port.start("late", lane_of())


def test_a_profile_slows_steps_and_transfers_down():
    profile = NodeProfile(seconds_per_step=0.02, up_mbps=8.0, latency_ms=1.0)
    port = WallPort(profile=profile)
    before = port.now()
    port.before_step(1)
    port.after_step()
    assert port.now() - before >= 20_000
    begin = port.now()
    port.start("upload", lane_of(Transfer("up", 10_000)))
    assert outcomes(port)[0].finished_at - begin >= 11_000


def test_an_interrupt_ends_the_wait_for_a_slow_step():
    port = WallPort(profile=NodeProfile(seconds_per_step=3600.0))
    port.before_step(1)
    port.interrupt()
    port.after_step()
    assert port.now() < HOUR


def test_ports_of_one_start_agree_about_the_time():
    started_at = time.time() - 100.0
    first, second = WallClock(started_at).now(), WallClock(started_at).now()
    assert abs(second - first) < micros(5)
    assert abs(first - micros(100)) < micros(5)


def test_utc_is_iso_8601_with_microseconds():
    text = WallPort().utc()
    assert text.endswith("+00:00")
    assert len(text) == len("2025-01-01T00:00:00.000000+00:00")


def test_long_work_of_a_lane_is_done_where_the_lane_runs_and_its_errors_are_the_lanes():
    def lane():
        assert (yield Compute(HOUR, lambda: 5)) == 5
        yield Compute(HOUR, lambda: 1 / 0)

    port = WallPort()
    port.start("round", lane())
    assert isinstance(outcomes(port)[0].error, ZeroDivisionError)


def test_an_idle_lane_wakes_after_its_interval_or_at_its_end_whichever_is_first():
    port = WallPort()
    before = port.now()
    port.start("poll", lane_of(Idle(micros(0.003)), Idle(HOUR, Micros(before + 5000))))
    assert before + 5000 <= outcomes(port)[0].finished_at < HOUR


def test_a_port_can_be_closed_while_a_lane_starts():
    for _ in range(300):
        port = WallPort()

        def start(port=port):
            with contextlib.suppress(RuntimeError):  # it was closed before
                port.start("poll", lane_of(Access(lambda: 7)))

        starting = threading.Thread(target=start, daemon=True)
        starting.start()
        port.close()
        starting.join()
