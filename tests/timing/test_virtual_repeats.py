"""Whole exchanges in virtual time, with the threads disturbed: nothing may change."""

import random
import threading
from contextlib import closing

from hypothesis import given, settings
from hypothesis import strategies as st

from ray_diloco.protocol.clock import Access, Compute, Idle, Sleep, Transfer, micros
from ray_diloco.protocol.seeds import seeded
from ray_diloco.timing.profile import NodeProfile
from ray_diloco.timing.virtual import VirtualClock

NEVER = threading.Event()


class Exchange:
    """Nodes that upload numbers, poll for their sum and add it in; a master that sums them."""

    def __init__(self, seed, profiles, inner_steps, poll_interval, disturb):
        self.rng = random.Random(disturb)
        self.profiles = {f"n{i}": profile for i, profile in enumerate(profiles)}
        self.clock = VirtualClock([*self.profiles, "master"], yield_to_others=self.disturb)
        self.seed = seed
        self.inner_steps = inner_steps
        self.poll_interval = poll_interval
        self.deltas = {}
        self.total = (0, 0.0)
        self.left = len(self.profiles)
        self.history = []

    def disturb(self):
        if self.rng.random() < 0.2:
            NEVER.wait(self.rng.random() * 0.0005)

    def commit(self, name, number, value):
        self.deltas[name, number] = value
        self.history.append((self.clock.now(), name, number, value))

    def merge(self):
        version, total = self.total
        found, self.deltas = self.deltas, {}
        self.total = (version + 1, total + sum(found[key] for key in sorted(found)))
        self.history.append((self.clock.now(), "master", *self.total))

    def leave(self):
        self.left -= 1

    def upload(self, name, number, value):
        yield Compute(micros(0.01))
        yield Transfer("up", 10_000)
        yield Access(lambda: self.commit(name, number, value))

    def poll(self, known):
        version, total = yield Access(lambda: self.total, kind="look", memo="head")
        if version > known:
            yield Transfer("down", 20_000)
            return version, total
        return None

    def rounds(self):
        while True:
            left, found = yield Access(lambda: (self.left, len(self.deltas)), kind="look")
            if found:
                yield Compute(micros(0.2), lambda: NEVER.wait(0.0002))
                yield Access(self.merge, priority=-1)
            elif not left:
                return
            yield Idle(micros(0.25), until=None if left else 0)

    def node(self, name):
        rng = seeded(self.seed, name, "jitter")
        with closing(self.clock.port(name, profile=self.profiles[name], rng=rng)) as port:
            self.train(name, port)
            port.start("bye", (effect for effect in [Access(self.leave)]))
            port.wait()

    def train(self, name, port):
        value, known, next_poll, busy = 1.0, 0, 0, set()
        for step in range(1, 13):
            port.before_step(self.inner_steps - (step - 1) % self.inner_steps, next_poll)
            value = value * 1.01 + 0.001
            port.after_step()
            for outcome in port.collect():
                busy.discard(outcome.name)
                if outcome.value:
                    known, total = outcome.value
                    value += 0.1 * total
            if step % self.inner_steps == 0 and "upload" not in busy:
                busy.add("upload")
                port.start("upload", self.upload(name, step, value))
            if port.now() >= next_poll and "poll" not in busy:
                busy.add("poll")
                next_poll = port.now() + self.poll_interval
                port.start("poll", self.poll(known))
        self.history.append((name, value))
        while busy:
            port.wait()
            busy -= {outcome.name for outcome in port.collect()}

    def master(self):
        with closing(self.clock.port("master")) as port:
            port.start("round", self.rounds())
            port.wait()
            assert port.collect()[0].error is None

    def run(self):
        threads = [
            threading.Thread(target=self.node, args=(n,), daemon=True) for n in self.profiles
        ]
        threads.append(threading.Thread(target=self.master, daemon=True))
        self.rng.shuffle(threads)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        accesses = [event for event in self.history if len(event) == 4]
        values = sorted(event for event in self.history if len(event) == 2)
        return accesses, values, self.total, self.clock.trace_hash()


PROFILES = st.lists(
    st.builds(
        NodeProfile,
        seconds_per_step=st.sampled_from([0.1, 0.25, 1.0]),
        jitter=st.just("lognormal"),
        jitter_parameter=st.sampled_from([0.0, 0.3]),
        up_mbps=st.sampled_from([None, 1.0]),
        latency_ms=st.sampled_from([0.0, 25.0]),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=12, deadline=None)
@given(
    st.integers(0, 99),
    PROFILES,
    st.integers(1, 4),
    st.sampled_from([micros(0.1), micros(0.5), micros(3)]),
)
def test_an_exchange_is_the_same_however_its_threads_are_disturbed(seed, profiles, h, poll):
    runs = [Exchange(seed, profiles, h, poll, disturb).run() for disturb in range(3)]
    assert runs[0] == runs[1] == runs[2]
    assert runs[0][2][0] > 0


def test_no_interrupt_is_lost_however_it_meets_the_wait():
    for attempt in range(30):
        clock = VirtualClock(["a", "b"], yield_to_others=lambda: NEVER.wait(0.0001))
        port = clock.port("a")
        both = threading.Barrier(2)

        def from_elsewhere(port=port, both=both, attempt=attempt):
            both.wait()
            NEVER.wait(0.00002 * attempt)
            port.interrupt()

        thread = threading.Thread(target=from_elsewhere, daemon=True)
        thread.start()
        port.start("x", (effect for effect in [Sleep(micros(1)), Idle(micros(1))]))
        both.wait()
        port.wait()
        port.wait(micros(3))
        thread.join(10)
        assert not thread.is_alive()
