import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_diloco.timing.claims import Ask, Claim, Watch
from ray_diloco.timing.schedule import Schedule


def access(label="x", priority=0, writes=False):
    return Ask("access", label, priority, writes)


REST = Ask("rest", "time")


class Talker:
    """Sends a participant's messages with their numbers."""

    def __init__(self, schedule, name):
        self.schedule = schedule
        self.name = name
        self.number = 0

    def __call__(self, time, ask=None, watches=(), leaves=False):
        claim = Claim(self.name, self.number, time, watches, ask, leaves)
        self.number += 1
        return self.schedule.apply(claim)


def table(*names):
    schedule = Schedule()
    for name in names:
        schedule.register(name)
    return schedule, *(Talker(schedule, name) for name in names)


def who(grants):
    return [(grant.participant, grant.time) for grant in grants]


# -- the rules, one by one -------------------------------------------------------------------------


def test_nothing_is_granted_before_everybody_has_spoken():
    _, a, b = table("a", "b")
    assert a(5, access()) == []
    assert who(b(6)) == [("a", 5)]


def test_an_access_waits_for_a_promise_of_the_same_time():
    _, a, b = table("a", "b")
    b(5)
    assert a(5, access()) == []
    assert who(b(6)) == [("a", 5)]


def test_equal_times_go_by_priority_and_then_by_participant():
    _, a, b, c = table("a", "b", "c")
    assert a(5, access(priority=1)) == []
    assert c(5, access()) == []
    assert who(b(5, access())) == [("b", 5)]
    assert who(b(9)) == [("c", 5)]
    assert who(c(None)) == [("a", 5)]


def test_who_was_granted_holds_the_others_until_the_next_claim():
    _, a, b = table("a", "b")
    b(2, access())
    assert who(a(1, access())) == [("a", 1)]
    assert who(a(1, access())) == [("a", 1)]
    assert who(a(3)) == [("b", 2)]


def test_who_leaves_holds_nobody_up_whether_it_computes_or_waits():
    schedule, a, b, c = table("a", "b", "c")
    a(5, access())
    b(7, access())
    assert who(b(None, leaves=True)) == []
    assert who(c(None, leaves=True)) == [("a", 5)]
    with pytest.raises(RuntimeError, match="has left"):
        c(9)
    schedule.register("b", 7)


def test_a_broken_promise_is_an_error():
    _, a, b = table("a", "b")
    a(10)
    b(20)
    with pytest.raises(RuntimeError, match="'a' claims 9, but promised nothing before 10"):
        a(9, access())


def test_a_rest_before_the_promise_is_allowed_and_the_promise_stays():
    _, a, b = table("a", "b")
    a(10)
    assert who(b(8, access())) == [("b", 8)]
    b(20)
    assert who(a(5, REST)) == [("a", 5)]
    assert who(b(20, access())) == []
    with pytest.raises(RuntimeError, match="promised"):
        a(9)


def test_nobody_claims_while_it_waits():
    _, a, _ = table("a", "b")
    a(5, access())
    with pytest.raises(RuntimeError, match="while it waits for 'x'"):
        a(6)


def test_a_newcomer_must_not_come_before_what_has_been_granted():
    schedule, a = table("a")
    a(5, access())
    with pytest.raises(RuntimeError, match="joins at 4"):
        schedule.register("late", 4)
    schedule.register("late", 5)


def test_messages_that_overtake_each_other_are_put_in_order_and_repeats_are_ignored():
    schedule, b = table("b")
    b(None)
    schedule.register("a")
    first, second = Claim("a", 0, 3), Claim("a", 1, 5, ask=access())
    assert schedule.apply(second) == []
    assert who(schedule.apply(first)) == [("a", 5)]
    assert schedule.apply(second) == []
    assert schedule.accesses == 1


def test_a_watch_holds_nobody_up_until_somebody_writes():
    _, a, b = table("a", "b")
    watch = Watch(base=0, interval=10, seen=0)
    a(100, watches=(watch,))
    assert who(b(35, access(writes=False))) == [("b", 35)]
    assert who(b(40, access(writes=True))) == [("b", 40)]
    assert b(51, access()) == []
    (grant,) = a(60, REST, (watch,))
    assert (grant.time, grant.fired, grant.writes) == (50, 0, 1)
    assert who(a(60)) == [("b", 51)]


def test_a_write_wakes_who_only_watches_at_its_first_tick_after_it():
    _, a, b = table("a", "b")
    assert a(None, REST, (Watch(3, 10, 0), Watch(1, 5, 0))) == []
    writer, watcher = b(11, access(writes=True))
    assert (writer.participant, writer.writes) == ("b", 1)
    assert (watcher.participant, watcher.time, watcher.fired) == ("a", 13, 0)


def test_a_standstill_is_found_and_says_who_waits_for_what():
    _, a, b = table("a", "b")
    a(None, Ask("rest", "poll"), (Watch(0, 5, 0),))
    grants = b(None, REST)
    assert {grant.participant for grant in grants} == {"a", "b"}
    assert grants[0].error == (
        "virtual time stands still: a waits for 'poll' never, or until somebody writes; "
        "b waits for 'time' never"
    )


def test_of_many_participants_those_are_named_whom_the_others_wait_for():
    names = [f"n{number:02}" for number in range(40)]
    schedule, *talkers = table(*names)
    for talk in talkers[:-1]:
        talk(5, access())
    talkers[-1](3)
    told = schedule.describe()
    assert told.startswith("n39 computes, next access at 0.000003 s or later; n00 waits for 'x'")
    assert told.endswith("; and 28 more")


def test_a_standstill_after_the_last_writer_has_left_is_found():
    _, a, b = table("a", "b")
    a(None, REST)
    (grant,) = b(None, leaves=True)
    assert grant.error is not None


def test_an_interrupt_ends_the_present_rest_or_the_next_but_no_access():
    schedule, a, b = table("a", "b")
    a(50, REST)
    assert [(g.time, g.interrupted) for g in schedule.interrupt("a")] == [(0, True)]
    assert schedule.interrupt("a") == []
    assert a(5, access()) == []
    assert schedule.interrupt("a") == []
    assert who(b(9)) == [("a", 5)]
    assert [g.interrupted for g in a(50, REST)] == [True]
    assert a(50, REST) == []


def test_the_trace_hash_covers_times_participants_and_lanes_of_accesses_only():
    def trace(time, name, label, rests):
        schedule, talk = table(name)
        for _ in range(rests):
            talk(1, REST)
        talk(time, access(label))
        return schedule.trace_hash()

    assert trace(5, "a", "x", 0) == trace(5, "a", "x", 3)
    assert len({trace(*t, 0) for t in [(5, "a", "x"), (6, "a", "x"), (5, "b", "x")]}) == 3
    assert trace(5, "a", "x", 0) != trace(5, "a", "y", 0)


# -- against a calculation with nothing running beside it ------------------------------------------

GAPS = st.integers(0, 6)
WRITER = st.lists(st.tuples(GAPS, st.integers(0, 2), st.booleans()), max_size=6)
"""(time since the last access, priority, writes) of one access after the other."""
POLLER = st.tuples(GAPS, st.integers(1, 5))
"""(first look, interval): looks until nobody can write any more."""


def event_list(writers, pollers):
    """(time, participant) of all accesses, from a list of events in one loop."""
    trace, writes = [], []
    state = {name: [0, list(script)] for name, script in writers.items()}
    looks = {name: [first, interval, None] for name, (first, interval) in pollers.items()}

    def head(name):
        if name in state:
            time, script = state[name]
            return (time + script[0][0], script[0][1], name) if script else None
        base, interval, seen = looks[name]
        if seen is None:
            return (base, 0, name)
        if seen == len(writes):
            return None
        late = writes[seen] - base
        return (base + interval * (max(0, late // interval) + 1), 0, name)

    while heads := [h for h in map(head, [*state, *looks]) if h is not None]:
        time, _, name = min(heads)
        trace.append((time, name))
        if name in state:
            if state[name][1].pop(0)[2]:
                writes.append(time)
            state[name][0] = time
        else:
            looks[name] = [time, looks[name][1], len(writes)]
    return trace


class Actor:
    """Plays a script against the schedule, one message at a time; ``granted`` is its inbox."""

    def __init__(self, schedule, name):
        self.talk = Talker(schedule, name)
        self.name = name
        self.granted = None
        self.trace = []

    def writer(self, script, promises):
        time = 0
        for gap, priority, writes in script:
            if promises.random() < 0.5:
                yield time + promises.randint(0, gap), None, ()
            time += gap
            yield time, access("w", priority, writes), ()
            self.trace.append((self.granted.time, self.name))
        yield None, None, ()

    def poller(self, first, interval, promises):
        time = first
        while True:
            yield time, access("p"), ()
            self.trace.append((self.granted.time, self.name))
            watch = Watch(time, interval, self.granted.writes)
            if promises.random() < 0.5:
                yield time + promises.randint(0, 20), None, (watch,)
            yield None, REST, (watch,)
            if self.granted.error:
                return
            time = self.granted.time


def played(writers, pollers, rng):
    """The same through a schedule, with messages in random real order."""
    schedule = Schedule()
    names = [*writers, *pollers]
    rng.shuffle(names)
    actors, scripts, total = {}, {}, []
    for name in names:
        schedule.register(name)
        actors[name] = actor = Actor(schedule, name)
        actor.trace = total
        if name in writers:
            scripts[name] = actor.writer(writers[name], rng)
        else:
            scripts[name] = actor.poller(*pollers[name], rng)
    ready = set(names)
    while ready:
        name = rng.choice(sorted(ready))
        ready.discard(name)
        message = next(scripts[name], None)
        if message is None:
            grants = actors[name].talk(None, leaves=True)
        else:
            time, ask, watches = message
            grants = actors[name].talk(time, ask, watches)
            if ask is None:
                ready.add(name)
        for grant in grants:
            actors[grant.participant].granted = grant
            ready.add(grant.participant)
    return total, schedule


@settings(max_examples=150, deadline=None)
@given(st.lists(WRITER, max_size=4), st.lists(POLLER, max_size=3), st.integers(0, 2**32))
def test_accesses_come_in_one_order_whatever_the_order_of_messages(scripts, looks, seed):
    writers = {f"n{2 * i}": script for i, script in enumerate(scripts)}
    pollers = {f"n{2 * i + 1}": look for i, look in enumerate(looks)}
    expected = event_list(writers, pollers)
    first, schedule = played(writers, pollers, random.Random(seed))
    again, other = played(writers, pollers, random.Random(seed + 1))
    assert first == again == expected
    assert schedule.trace_hash() == other.trace_hash()
    assert schedule.accesses == len(expected)
