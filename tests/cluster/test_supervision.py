"""Who has died is started again, with growing pauses, and not for ever."""

from ray_diloco.cluster.supervision import Supervisor
from ray_diloco.protocol.clock import Micros, micros

NOW = Micros(5_000_000)


def test_pauses_double_up_to_a_minute():
    supervisor = Supervisor(most=9)
    pauses = [supervisor.died("n0", "killed", now=NOW) for _ in range(9)]
    assert [(at or 0) - NOW for at in pauses] == [
        micros(seconds) for seconds in (1, 2, 4, 8, 16, 32, 60, 60, 60)
    ]


def test_who_has_died_too_often_is_not_started_again():
    supervisor = Supervisor(most=2)
    assert supervisor.died("n0", "first", now=NOW) is not None
    assert supervisor.died("n0", "second", now=NOW) is not None
    assert supervisor.died("n0", "third", now=NOW) is None
    assert supervisor.died("n1", "other", now=NOW) is not None
    assert supervisor.restarts() == {"n0": ["first", "second"], "n1": ["other"]}


def test_nobody_is_started_again_where_that_is_not_wanted():
    supervisor = Supervisor(most=0)
    assert supervisor.died("n0", "killed", now=NOW) is None
    assert not supervisor.waiting
    assert supervisor.restarts() == {}


def test_each_comes_back_once_and_when_its_time_has_come():
    supervisor = Supervisor(most=5)
    at = supervisor.died("n0", "killed", now=NOW)
    assert at is not None
    assert supervisor.waiting
    assert supervisor.take_due(Micros(at - 1)) == []
    assert supervisor.take_due(at) == ["n0"]
    assert supervisor.take_due(at) == []
    assert not supervisor.waiting


def test_a_machine_is_waited_for_with_the_same_pauses_and_counts_as_no_death():
    supervisor = Supervisor(most=1, patience=micros(8))
    now = supervisor.died("n0", "its machine has gone", now=NOW)
    looks = []
    while now is not None and supervisor.take_due(now) == ["n0"]:
        looks.append(now - NOW)
        now = supervisor.waits("n0", now=now)
    assert looks == [micros(seconds) for seconds in (1, 2, 4, 8, 16)]
    assert not supervisor.waiting
    assert supervisor.restarts() == {"n0": ["its machine has gone"]}


def test_a_death_on_the_machine_that_came_begins_a_new_wait():
    supervisor = Supervisor(most=2, patience=micros(8))
    supervisor.died("n0", "its machine has gone", now=NOW)
    assert supervisor.waits("n0", now=NOW) == NOW + micros(1)
    later = Micros(NOW + micros(100))
    assert supervisor.waits("n0", now=later) is None
    supervisor.died("n0", "killed", now=later)
    assert supervisor.waits("n0", now=later) == later + micros(1)


def test_who_waits_is_due_at_once_when_the_run_is_to_end():
    supervisor = Supervisor(most=1)
    supervisor.died("n0", "killed", now=NOW)
    supervisor.hasten(NOW)
    assert supervisor.take_due(NOW) == ["n0"]
