import logging
import random
import threading
from contextlib import closing

import pytest

from ray_diloco.errors import TrainingError
from ray_diloco.protocol.clock import Access, Compute, Idle, Sleep, Transfer, micros
from ray_diloco.timing.profile import NodeProfile
from ray_diloco.timing.virtual import VirtualClock

SECOND = micros(1)


def run_threads(bodies, order=None):
    """Each body in a thread of its own, started in the given order; their errors by name."""
    errors = {}

    def guarded(name):
        try:
            bodies[name]()
        except Exception as error:
            errors[name] = error

    threads = {n: threading.Thread(target=guarded, args=(n,), daemon=True) for n in bodies}
    for name in order or bodies:
        threads[name].start()
    for name, thread in threads.items():
        thread.join(20)
        assert not thread.is_alive(), f"{name} hangs"
    return errors


def alone(profile=None):
    clock = VirtualClock(["a"])
    return clock, clock.port("a", profile=profile)


def iter_lane(*effects):
    results = []
    for effect in effects:
        results.append((yield effect))
    return results


def train(port, steps, each, start_at):
    """Promises that a lane starts only at the end of the step ``start_at``."""
    for step in range(1, steps + 1):
        port.before_step(start_at + 1 - step if step <= start_at else steps)
        port.after_step()
        each(step)


# -- the scenario that was worked out by hand ------------------------------------------------------


class HandComputed:
    """Node a steps in 1 s, and after 3 steps uploads 1,000,000 bytes at 8 Mbit/s (1 s) and 20 ms of
    latency. Node b steps in 0.3 s, polls every 0.5 s from 0.3 s on, and downloads as much at
    80 Mbit/s (0.1 s) and 10 ms.

    a: boundary 3.0, upload 3.0 to 4.02, commit 4.02. b: polls at 0.3, 0.8, ... 3.8 and first sees
    the commit at 4.3; the download ends at 4.41, in the 15th step, which ends at 4.5.
    """

    def __init__(self, yield_to_others=None):
        self.clock = VirtualClock(["a", "b"], yield_to_others=yield_to_others)
        self.commits = []
        self.seen = {"looks": 0}

    def run(self, order=("a", "b")):
        assert run_threads({"a": self.node_a, "b": self.node_b}, order) == {}
        return {**self.seen, "commits": self.commits, "trace": self.clock.trace_hash()}

    def upload(self, port):
        self.seen["looked"] = yield Access(self.clock.now, kind="look")
        yield Transfer("up", 1_000_000)
        yield Access(lambda: self.commits.append(self.clock.now()))
        return port.now()

    def poll(self, port):
        while not (yield Access(lambda: list(self.commits), kind="look")):
            self.seen["looks"] += 1
            yield Idle(micros(0.5))
        self.seen["found"] = port.now()
        yield Transfer("down", 1_000_000)

    def node_a(self):
        with closing(self.clock.port("a", profile=NodeProfile(up_mbps=8, latency_ms=20))) as port:

            def each(step):
                if step == 3:
                    port.start("upload", self.upload(port))

            train(port, 5, each, start_at=3)
            self.seen["landed"] = [(o.value, o.finished_at) for o in port.collect()]

    def node_b(self):
        profile = NodeProfile(seconds_per_step=0.3, down_mbps=80.0, latency_ms=10.0)
        with closing(self.clock.port("b", profile=profile)) as port:

            def each(step):
                if step == 1:
                    port.start("poll", self.poll(port))
                if found := port.collect():
                    self.seen["installed"] = (port.now(), found[0].finished_at)

            train(port, 20, each, start_at=1)


def test_a_scenario_comes_out_as_worked_out_by_hand():
    seen = HandComputed().run()
    assert seen.pop("trace")
    assert seen == {
        "looked": micros(3.0),
        "commits": [micros(4.02)],
        "landed": [(micros(4.02), micros(4.02))],
        "found": micros(4.3),
        "looks": 1,
        "installed": (micros(4.5), micros(4.41)),
    }


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_threads_changes_nothing(seed):
    rng = random.Random(seed)
    never = threading.Event()

    def disturb():
        never.wait(rng.random() * 0.001)

    assert HandComputed(disturb).run(order=["b", "a"]) == HandComputed().run()


# -- several participants --------------------------------------------------------------------------


def test_a_standstill_names_who_waits_for_what():
    clock = VirtualClock(["a", "b"])

    def poll():
        yield Access(lambda: None, kind="look")
        yield Idle(SECOND)

    def node_a():
        with closing(clock.port("a")) as port:
            port.start("poll", poll())
            port.wait()

    errors = run_threads({"a": node_a, "b": lambda: clock.port("b").wait()})
    assert set(errors) == {"a", "b"}
    assert all(isinstance(error, TrainingError) for error in errors.values())
    text = str(errors["a"])
    assert "a waits for 'poll' never, or until somebody writes" in text
    assert "b waits for 'time' never" in text


def test_idle_ends_at_its_end_without_any_write():
    clock, port = alone()

    def poll():
        yield Access(lambda: None, kind="look")
        yield Idle(SECOND, until=micros(3.5))

    port.start("poll", poll())
    port.wait()
    assert port.now() == micros(3.5)
    assert clock.accesses == 1


def test_idle_before_any_look_lasts_one_interval():
    _, port = alone()
    port.start("poll", iter_lane(Idle(SECOND), Idle(SECOND, until=micros(1.5))))
    port.wait()
    assert port.now() == micros(1.5)


def test_lookups_do_not_end_an_idle_poll_and_a_memo_spares_the_call():
    clock = VirtualClock(["a", "b"])
    calls = []

    def look():
        calls.append(clock.now())
        return len(calls)

    def looks(port):
        found = []
        for _ in range(4):
            found.append((yield Access(look, kind="look", memo="head")))
            yield Sleep(SECOND)
        return found

    def node_a():
        with closing(clock.port("a")) as port:
            port.start("poll", looks(port))
            port.wait()
            assert port.collect()[0].value == [1, 1, 2, 2]

    def node_b():
        with closing(clock.port("b")) as port:
            port.start("write", iter_lane(Sleep(micros(1.5)), Access(lambda: None)))
            port.wait()

    assert run_threads({"a": node_a, "b": node_b}) == {}
    assert calls == [0, micros(2)]


def test_long_work_lets_the_others_go_on():
    clock = VirtualClock(["a", "b"])
    b_is_done = threading.Event()

    def node_a():
        with closing(clock.port("a")) as port:
            port.start("round", iter_lane(Compute(micros(10), lambda: b_is_done.wait(15))))
            port.wait()
            assert port.collect()[0].value == [True]

    def node_b():
        with closing(clock.port("b")) as port:
            port.start("x", iter_lane(Sleep(micros(5)), Access(lambda: None)))
            port.wait()
            b_is_done.set()

    assert run_threads({"a": node_a, "b": node_b}) == {}


def test_a_participant_that_joins_later_starts_at_its_time():
    clock = VirtualClock(["a"])
    clock.register("late", micros(5))
    a = clock.port("a")
    a.start("x", iter_lane(Sleep(micros(4)), Access(lambda: 1)))
    a.wait()
    late = clock.port("late")
    assert late.now() == micros(5)
    with pytest.raises(RuntimeError, match="registered already"):
        clock.register("a")


def test_the_header_is_part_of_the_trace_hash():
    assert VirtualClock([], header="threads=1").trace_hash() != VirtualClock([]).trace_hash()


def test_neither_reads_nor_writes_of_its_own_hide_from_an_idle_lane_what_it_has_not_looked_at():
    clock = VirtualClock(["a", "b"])

    def rounds(port):
        yield Access(lambda: None, kind="look")
        yield Compute(micros(2))
        yield Access(lambda: None, kind="read")
        yield Access(lambda: None)
        yield Idle(SECOND)
        return port.now()

    def node_a():
        with closing(clock.port("a")) as port:
            port.start("round", rounds(port))
            port.wait()
            assert port.collect()[0].value == micros(3)

    def node_b():
        with closing(clock.port("b")) as port:
            port.start("write", iter_lane(Sleep(SECOND), Access(lambda: None)))
            port.wait()

    assert run_threads({"a": node_a, "b": node_b}) == {}


def test_who_is_blocked_for_long_says_in_the_log_whom_it_waits_for(caplog):
    told = threading.Event()
    clock = VirtualClock(["a", "b"], patience_seconds=0.005)

    def hear(_record):
        told.set()
        return True

    logger = logging.getLogger("ray_diloco.timing.virtual")
    logger.addFilter(hear)

    def node_b():
        with closing(clock.port("b")):
            told.wait(15)

    def node_a():
        with closing(clock.port("a")) as port:
            port.start("upload", iter_lane(Access(lambda: None)))
            port.wait()

    try:
        assert run_threads({"a": node_a, "b": node_b}) == {}
    finally:
        logger.removeFilter(hear)
    assert "a still waits: a waits for 'upload' at 0.000000 s; b computes" in caplog.text
