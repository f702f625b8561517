"""What is tried again, for how long, and how often commits are sent."""

import random
from collections.abc import Callable, Generator
from typing import Any

import pytest

from ray_diloco.errors import PermanentHubError, QuotaExceeded, TransientHubError
from ray_diloco.hub.limits import (
    HOUR,
    CommitBudget,
    RetryPolicy,
    Share,
    backoff,
    master_share,
    node_share,
    policy_of,
    retrying,
)
from ray_diloco.hub.settings import HubSettings
from ray_diloco.protocol.clock import Access, Effect, Micros, Sleep, micros


class HandClock:
    def __init__(self) -> None:
        self.time = 0

    def now(self) -> Micros:
        return Micros(self.time)

    def utc(self) -> str:
        return "2030-01-01T00:00:00.000000+00:00"


def drive(
    lane: Generator[Effect, Any, Any], clock: HandClock, *, interrupted: bool = False
) -> tuple[Any, list[int]]:
    """Run a lane to its end in no time; gives what it returned and how long it slept."""
    slept: list[int] = []
    try:
        effect = next(lane)
        while True:
            match effect:
                case Sleep(duration):
                    slept.append(duration)
                    clock.time += 0 if interrupted else duration
                    effect = lane.send(None)
                case Access(call):
                    try:
                        answer = call()
                    except Exception as error:
                        effect = lane.throw(error)
                    else:
                        effect = lane.send(answer)
                case _:
                    raise AssertionError(effect)
    except StopIteration as end:
        return end.value, slept


def failing(*errors: Exception) -> Callable[[], str]:
    left = list(errors)

    def call() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return call


POLICY = RetryPolicy(
    first=micros(1), longest=micros(8), deadline=micros(60), quota_longest=micros(600)
)


def attempt(call: Callable[[], str], **options: Any) -> tuple[Any, list[int]]:
    clock = HandClock()
    interrupted = options.pop("interrupted", False)
    lane = retrying(call, POLICY, random.Random(1), clock, **options)
    return drive(lane, clock, interrupted=interrupted)


def test_a_passing_fault_is_tried_again_with_growing_waits() -> None:
    answer, slept = attempt(failing(*[TransientHubError("busy", "refused")] * 3))
    assert answer == "done"
    assert [micros(0.5) <= slept[0] <= micros(1), len(slept)] == [True, 3]
    assert micros(2) <= slept[2] <= micros(4)


def test_a_permanent_fault_is_not_tried_again() -> None:
    with pytest.raises(PermanentHubError):
        attempt(failing(PermanentHubError("401"), AssertionError("asked twice")))


def test_a_commit_that_may_have_landed_is_not_sent_again() -> None:
    call = failing(TransientHubError("reset", "unknown"), AssertionError("sent twice"))
    with pytest.raises(TransientHubError):
        attempt(call, kind="write")


def test_a_commit_that_may_land_twice_is_sent_again() -> None:
    call = failing(TransientHubError("reset", "unknown"))
    assert attempt(call, kind="write", repeatable=True)[0] == "done"


def test_a_read_is_tried_again_whatever_its_outcome() -> None:
    assert attempt(failing(TransientHubError("reset", "unknown")))[0] == "done"


def test_the_deadline_ends_the_tries() -> None:
    with pytest.raises(TransientHubError):
        attempt(failing(*[TransientHubError("busy", "refused")] * 100))


def test_a_quota_waits_what_the_hub_says_and_not_more_than_the_cap() -> None:
    _, slept = attempt(failing(QuotaExceeded("429", micros(90))))
    assert micros(90) <= slept[0] <= micros(91)
    _, slept = attempt(failing(QuotaExceeded("429", micros(10**6))))
    assert micros(600) <= slept[0] <= micros(601)


def test_what_is_waited_out_is_noted_and_what_is_raised_is_not() -> None:
    heard: list[Exception] = []
    faults = [TransientHubError("500", "refused"), QuotaExceeded("429", micros(1))]
    attempt(failing(*faults), note=heard.append)
    assert heard == faults
    heard.clear()
    with pytest.raises(TransientHubError):
        attempt(failing(TransientHubError("reset", "unknown")), kind="write", note=heard.append)
    assert heard == []


def test_an_interrupted_wait_brings_the_next_try_forward() -> None:
    answer, slept = attempt(failing(*[TransientHubError("busy", "refused")] * 2), interrupted=True)
    assert (answer, len(slept)) == ("done", 2)


def test_waits_are_capped_however_many_tries_there_were() -> None:
    assert backoff(10_000, POLICY, random.Random(1)) <= POLICY.longest


def test_the_settings_are_the_policy_in_microseconds() -> None:
    policy = policy_of(HubSettings(retry_deadline=2.5))
    assert policy.deadline == 2_500_000


def spend_in_turn(budget: CommitBudget | Share, clock: HandClock, until: int) -> list[int]:
    """When commits were sent, each as soon as it might."""
    moments: list[int] = []
    while clock.now() + budget.wait() < until:
        clock.time += budget.wait()
        budget.spend()
        moments.append(clock.now())
    return moments


def test_a_budget_spreads_commits_evenly_after_a_burst() -> None:
    clock = HandClock()
    moments = spend_in_turn(CommitBudget(clock, 100, burst=2), clock, micros(100))
    assert moments == [0, 0, micros(36), micros(72)]


def test_a_budget_admits_no_more_than_its_rate_plus_the_burst_in_an_hour() -> None:
    clock = HandClock()
    assert len(spend_in_turn(CommitBudget(clock, 7, burst=3), clock, HOUR)) <= 7 + 3


def test_a_share_follows_the_number_of_active_nodes() -> None:
    clock = HandClock()
    share = Share(clock, 100, node_share)
    share.heed(4)
    alone = spend_in_turn(share, clock, HOUR)
    share.heed(16)
    among_many = spend_in_turn(share, clock, 2 * HOUR)
    assert (len(alone), len(among_many)) == (21, 6)


def test_a_share_of_what_nobody_counts_never_waits() -> None:
    share = Share(HandClock(), None, master_share)
    share.heed(3)
    for _ in range(1000):
        share.spend()
    assert share.wait() == 0


def test_no_rate_is_no_limit() -> None:
    budget = CommitBudget(HandClock(), None)
    for _ in range(1000):
        budget.spend()
    assert budget.wait() == 0


@pytest.mark.parametrize("nodes", [1, 2, 4, 16, 100])
def test_the_shares_are_the_budget_and_the_master_has_no_less_than_a_node(nodes: int) -> None:
    master, node = master_share(100, nodes), node_share(100, nodes)
    assert master + nodes * node == pytest.approx(100)
    assert master >= max(node, 20)


def test_a_table_without_active_rows_leaves_a_share_for_one() -> None:
    assert node_share(100, 0) == node_share(100, 1) == 50
