"""How long a participant's next steps take, drawn ahead, so that it can promise when it is back."""

import itertools
import random
from collections import deque

from ray_diloco.protocol.clock import Micros
from ray_diloco.timing.profile import NodeProfile, draw_step

LOOKAHEAD = 256
"""A promise looks at most so many steps ahead: what it costs stays small."""


class StepTimes:
    """Durations in the order in which they are drawn, however far ahead somebody looks."""

    def __init__(self, profile: NodeProfile, rng: random.Random) -> None:
        self._profile = profile
        self._rng = rng
        self._drawn: deque[Micros] = deque()

    def quiet_end(self, now: Micros, steps: int, until: Micros | None) -> Micros:
        """When that many steps from ``now`` will have ended, or the first that ends at or after
        ``until``, if that is earlier. Possibly less (a lower bound) for more than `LOOKAHEAD`.
        """
        steps = max(1, min(steps, LOOKAHEAD))
        while len(self._drawn) < steps:
            self._drawn.append(draw_step(self._profile, self._rng))
        end = now
        for duration in itertools.islice(self._drawn, steps):
            end = Micros(end + duration)
            if until is not None and end >= until:
                break
        return end

    def take(self) -> Micros:
        """The duration of the next step."""
        return self._drawn.popleft() if self._drawn else draw_step(self._profile, self._rng)
