"""The retry policy bound to one participant: its generator and its clock."""

import random
from collections.abc import Callable, Generator
from typing import TypeVar

from ray_diloco.errors import QuotaExceeded
from ray_diloco.hub.limits import Kind, RetryPolicy, backoff, retrying
from ray_diloco.protocol.clock import Clock, Effect, Micros

T = TypeVar("T")


class Retry:
    """How one participant waits out what passes by itself."""

    def __init__(self, policy: RetryPolicy, rng: random.Random, clock: Clock) -> None:
        self._policy = policy
        self._rng = rng
        self._clock = clock

    def asking(
        self, call: Callable[[], T], *, kind: Kind = "read", memo: str | None = None
    ) -> Generator[Effect, None, T]:
        """A call that may be repeated, for a lane: passing faults are waited out, others raised.
        ``kind`` and ``memo``: see `Access`.
        """
        return retrying(call, self._policy, self._rng, self._clock, kind=kind, memo=memo)

    def delay(self, attempt: int) -> Micros:
        """How long to wait after a failed commit (0 for the first)."""
        return backoff(attempt, self._policy, self._rng)

    def quota_delay(self, error: QuotaExceeded) -> Micros:
        """How long to wait because the hub said so, or as long as is ever waited."""
        asked = error.retry_after_us
        longest = self._policy.quota_longest
        return Micros(min(asked, longest)) if asked is not None else self._policy.longest
