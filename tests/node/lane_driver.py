"""Lanes run on the spot: time passes when one sleeps, and a test may act meanwhile."""

import random
from collections.abc import Callable
from typing import Any

from ray_diloco.hub.limits import RetryPolicy
from ray_diloco.hub.patience import Retry
from ray_diloco.protocol.clock import Access, Compute, Lane, Micros, Sleep, micros
from ray_diloco.timing.virtual_utc import utc_at

POLICY = RetryPolicy(
    first=micros(0.1), longest=micros(1), deadline=micros(5), quota_longest=micros(5)
)


class HandClock:
    """``meanwhile``: what others do when a lane sleeps."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self._now = Micros(0)
        self._meanwhile = meanwhile
        self.sleeps = 0
        self.interrupts = False

    def now(self) -> Micros:
        return self._now

    def utc(self) -> str:
        return utc_at(self._now)

    def retry(self) -> Retry:
        return Retry(POLICY, random.Random(0), self)

    def finish(self, lane: Lane) -> Any:
        """What the lane returns; raises what it raises."""
        result: Any = None
        error: Exception | None = None
        while True:
            try:
                effect = lane.send(result) if error is None else lane.throw(error)
            except StopIteration as end:
                return end.value
            result, error = None, None
            try:
                match effect:
                    case Access(call) | Compute(_, call) if call is not None:
                        result = call()
                    case Sleep(duration):
                        self._sleep(duration)
                    case _:
                        pass
            except Exception as raised:
                error = raised

    def _sleep(self, duration: Micros) -> None:
        self.sleeps += 1
        self._meanwhile()
        if not self.interrupts:
            self._now = Micros(self._now + duration)
