import pytest

from ray_diloco.master.merging import Waiting, merge_at
from ray_diloco.protocol.clock import Micros, micros
from ray_diloco.protocol.settings import DilocoSettings

NOW = micros(100.0)


def due(waiting: Waiting, *, now: Micros = NOW, **settings) -> float | None:
    """In seconds."""
    at = merge_at(DilocoSettings(**settings), waiting, now=now)
    return None if at is None else at / 1e6


def seen(deltas: int, at: float = 100.0, **known) -> Waiting:
    return Waiting(deltas=deltas, since=micros(at), **known)


@pytest.mark.parametrize("merge", ["poll", "grace", "quorum", "synchronous"])
def test_where_nothing_waits_there_is_no_merge(merge):
    assert due(Waiting(), merge=merge) is None
    assert due(Waiting(over=True), merge=merge) is None


@pytest.mark.parametrize("merge", ["poll", "grace", "quorum", "synchronous"])
def test_when_nobody_will_send_any_more_the_rest_is_merged_at_once(merge):
    missing = {"n1": micros(900.0)}
    assert due(seen(1, silent_at=missing, over=True), merge=merge) == 100.0


def test_poll_merges_whatever_waits():
    assert due(seen(1)) == 100.0


def test_grace_merges_so_long_after_the_first_arrival():
    settings = {"merge": "grace", "grace_seconds": 2.5}
    assert due(seen(1), **settings) == 102.5
    assert due(seen(3), now=micros(101.0), **settings) == 102.5
    assert due(seen(3), now=micros(102.5), **settings) == 102.5
    assert due(seen(3), now=micros(110.0), **settings) == 110.0


def test_quorum_merges_when_enough_wait_or_the_first_has_waited_for_long():
    settings = {"merge": "quorum", "min_deltas": 3, "max_wait": 20.0}
    assert due(seen(2), **settings) == 120.0
    assert due(seen(2), now=micros(120.0), **settings) == 120.0
    assert due(seen(3), **settings) == 100.0


def test_synchronous_waits_for_a_delta_of_every_living_node():
    living = {"n0": micros(300.0), "n1": micros(200.0), "n2": micros(250.0)}
    assert due(seen(1, answered={"n0"}, silent_at=living), merge="synchronous") == 250.0
    assert due(seen(3, answered=set(living), silent_at=living), merge="synchronous") == 100.0


def test_synchronous_waits_for_nobody_who_has_long_been_silent():
    living = {"n0": micros(300.0), "n1": micros(100.0), "n2": micros(40.0)}
    assert due(seen(1, answered={"n0"}, silent_at=living), merge="synchronous") == 100.0


def test_synchronous_counts_a_node_as_there_whose_delta_was_refused():
    living = {"n0": micros(300.0), "n1": micros(200.0)}
    assert due(seen(1, answered={"n0", "n1"}, silent_at=living), merge="synchronous") == 100.0
