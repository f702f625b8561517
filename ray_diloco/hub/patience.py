"""The retry policy bound to one participant: its generator, its clock, and what it says of trouble.

Passing trouble may come by the hundred. The log gets the first of it, then a line now and then.
"""

import logging
import random
import re
from collections import Counter
from collections.abc import Callable, Generator
from typing import TypeVar

from ray_diloco.errors import HubError, QuotaExceeded
from ray_diloco.hub.limits import Kind, RetryPolicy, backoff, retrying
from ray_diloco.protocol.clock import MICROS_PER_SECOND, Clock, Effect, Micros

T = TypeVar("T")

QUIET = Micros(60 * MICROS_PER_SECOND)
"""Between two lines about passing trouble."""

_REASON = re.compile(r": (\d{3}|[A-Z]\w+)\b")

logger = logging.getLogger(__name__)


class Retry:
    """How one participant waits out what passes by itself. ``who``: its name in the log."""

    def __init__(
        self, policy: RetryPolicy, rng: random.Random, clock: Clock, *, who: str = ""
    ) -> None:
        self._policy = policy
        self._rng = rng
        self._clock = clock
        self._said = f"{who}: " if who else ""
        self._next_line = Micros(0)
        self._unsaid = 0
        self._waited_out: Counter[str] = Counter()

    def asking(
        self,
        call: Callable[[], T],
        *,
        kind: Kind = "read",
        memo: str | None = None,
        repeatable: bool = False,
    ) -> Generator[Effect, None, T]:
        """A call that may be repeated, for a lane: passing faults are waited out, others raised.
        ``kind`` and ``memo``: see `Access`. ``repeatable``: a write that may land twice.
        """
        return retrying(
            call,
            self._policy,
            self._rng,
            self._clock,
            kind=kind,
            memo=memo,
            repeatable=repeatable,
            note=self.note,
        )

    def delay(self, attempt: int) -> Micros:
        """How long to wait after a failed commit (0 for the first)."""
        return backoff(attempt, self._policy, self._rng)

    def quota_delay(self, error: QuotaExceeded) -> Micros:
        """How long to wait because the hub said so, or as long as is ever waited."""
        asked = error.retry_after_us
        longest = self._policy.quota_longest
        return Micros(min(asked, longest)) if asked is not None else self._policy.longest

    @property
    def deadline(self) -> Micros:
        """For how long one thing is tried."""
        return self._policy.deadline

    def note(self, error: HubError) -> None:
        """Passing trouble: it will be tried again."""
        self._waited_out[_reason(error)] += 1
        now = self._clock.now()
        if now < self._next_line:
            self._unsaid += 1
            return
        before = f" (and {self._unsaid} times before)" if self._unsaid else ""
        logger.warning("%strouble with the hub, trying on%s: %s", self._said, before, error)
        self._next_line, self._unsaid = Micros(now + QUIET), 0

    def conclude(self) -> None:
        """One line about all that was waited out, if anything was."""
        if self._waited_out:
            told = ", ".join(f"{count} x {what}" for what, count in self._waited_out.most_common())
            logger.info("%strouble with the hub that was waited out: %s", self._said, told)
            self._waited_out.clear()


def _reason(error: HubError) -> str:
    """A few letters: a status, a kind of broken connection, or that a file came damaged."""
    found = _REASON.search(str(error))
    return found[1] if found else "damaged file"
