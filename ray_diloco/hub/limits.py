"""Within the Hub's limits: what is tried again and when, and how often commits are sent.

Pieces for lanes (`yield from`): they wait by yielding, never by sleeping, so that they wait in
virtual time as well. Whole microseconds throughout.
"""

import itertools
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from ray_diloco.errors import HubError, QuotaExceeded, TransientHubError
from ray_diloco.hub.settings import HubSettings
from ray_diloco.protocol.clock import (
    MICROS_PER_SECOND,
    Access,
    Clock,
    Effect,
    Micros,
    Sleep,
    micros,
)

T = TypeVar("T")
Kind = Literal["write", "look", "read"]
Note = Callable[[HubError], None]
HOUR = Micros(3600 * MICROS_PER_SECOND)
LEAST_OF_MASTER = 0.2


def unnoted(_error: HubError) -> None:
    """Nobody hears of what is waited out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """``first`` and ``longest`` wait, ``deadline`` of all tries, ``quota_longest`` after a 429."""

    first: Micros
    longest: Micros
    deadline: Micros
    quota_longest: Micros


def policy_of(settings: HubSettings) -> RetryPolicy:
    """The policy that the settings ask for."""
    return RetryPolicy(
        first=micros(settings.retry_first),
        longest=micros(settings.retry_longest),
        deadline=micros(settings.retry_deadline),
        quota_longest=micros(settings.quota_longest),
    )


def retrying(
    call: Callable[[], T],
    policy: RetryPolicy,
    rng: random.Random,
    clock: Clock,
    *,
    kind: Kind = "read",
    memo: str | None = None,
    repeatable: bool = False,
    note: Note = unnoted,
) -> Generator[Effect, Any, T]:
    """What ``call`` gives, tried again while its error passes by itself and the deadline allows.

    ``kind`` and ``memo`` are those of `Access`; ``note`` hears of each error that is waited out.
    Raises the last error: at once when it is permanent, and at once when a ``write`` may have
    landed (outcome unknown: look before anything is sent again), unless it is ``repeatable``:
    landing twice does no harm. Time that a quota asks to wait does not count to the deadline. An
    interruption only brings the next try forward.
    """
    deadline = clock.now() + policy.deadline
    for attempt in itertools.count():
        try:
            return (yield Access(call, kind=kind, memo=memo))
        except QuotaExceeded as error:
            fault: HubError = error
            wait = _quota_wait(error, policy, rng)
            deadline += wait
        except TransientHubError as error:
            if kind == "write" and error.outcome == "unknown" and not repeatable:
                raise
            fault = error
            wait = backoff(attempt, policy, rng)
        if clock.now() + wait > deadline:
            raise fault
        note(fault)
        yield Sleep(wait)
    raise AssertionError("the count has no end")


def backoff(attempt: int, policy: RetryPolicy, rng: random.Random) -> Micros:
    """How long to wait after a failed try (0 for the first): doubles, capped, with jitter."""
    longest = min(policy.longest, policy.first << min(attempt, 30))
    return Micros(rng.randint(longest // 2, longest))


def _quota_wait(error: QuotaExceeded, policy: RetryPolicy, rng: random.Random) -> Micros:
    """What the server asked, capped, and a little more, so that not all come back at once."""
    asked = policy.longest if error.retry_after_us is None else error.retry_after_us
    return Micros(min(asked, policy.quota_longest) + rng.randint(0, policy.first))


def master_share(per_hour: float, nodes: int) -> float:
    """The master's part of the commits per hour, ``nodes`` being active: as much as a node has, and
    never less than `LEAST_OF_MASTER`, since everybody waits for its globals.
    """
    return max(per_hour / (max(nodes, 1) + 1), per_hour * LEAST_OF_MASTER)


def node_share(per_hour: float, nodes: int) -> float:
    """The part of each of ``nodes`` active ones: what the master leaves, in equal parts."""
    return (per_hour - master_share(per_hour, nodes)) / max(nodes, 1)


class CommitBudget:
    """At most ``per_hour`` commits (None: any number), evenly, ``burst`` of them at once.

    Two integers of state: the moment from which the budget would be whole again, and the rate.
    """

    def __init__(self, clock: Clock, per_hour: float | None, *, burst: int = 1) -> None:
        if burst < 1:
            raise ValueError(f"burst={burst}: at least 1 is needed")
        self._clock = clock
        self._burst = burst
        self._whole_at = clock.now()
        self._interval = 0
        self.change(per_hour)

    def change(self, per_hour: float | None) -> None:
        """Another rate from now on; what was spent stays spent."""
        if per_hour is not None and per_hour <= 0:
            raise ValueError(f"per_hour={per_hour}: more than 0 is needed")
        self._interval = 0 if per_hour is None else round(HOUR / per_hour)

    def wait(self) -> Micros:
        """How long until a commit may be sent; 0 when it may be sent now."""
        ready_at = self._whole_at - (self._burst - 1) * self._interval
        return Micros(max(0, ready_at - self._clock.now()))

    def spend(self) -> None:
        """A commit was sent."""
        self._whole_at = Micros(max(self._whole_at, self._clock.now()) + self._interval)


class Share:
    """One participant's part of the commit budget. ``per_hour``: what all share; None: nobody
    counts. ``part``: `master_share` or `node_share`.
    """

    def __init__(
        self, clock: Clock, per_hour: float | None, part: Callable[[float, int], float]
    ) -> None:
        self._per_hour = per_hour
        self._part = part
        self._budget = CommitBudget(clock, None, burst=2)
        self.heed(1)

    def heed(self, nodes: int) -> None:
        """So many nodes are active now, as the `nodes` table has it: all who read it agree."""
        if self._per_hour is not None:
            self._budget.change(self._part(self._per_hour, nodes))

    def wait(self) -> Micros:
        """How long until the next commit's turn."""
        return self._budget.wait()

    def spend(self) -> None:
        """A commit was sent."""
        self._budget.spend()
