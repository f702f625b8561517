"""The lease of a leading master: how long it may be silent, and the signs of life that keep it."""

from ray_diloco.protocol.clock import Micros

Sign = tuple[int, str, int]
"""(master epoch, publication id, beat): whoever leads changes it."""


class Lease:
    """A lease as a standby sees it, on its own clock. Pure.

    ``look_every``: what an answer of the hub stands for at most, so that time without an answer,
    or without the standby itself, does not count.
    """

    def __init__(self, duration: Micros, *, look_every: Micros) -> None:
        self._duration = duration
        self._look_every = look_every
        self._sign: Sign | None = None
        self._silent = 0
        self._answered_at: Micros | None = None

    def answered(self, sign: Sign, now: Micros) -> bool:
        """The hub has shown this sign. Gives whether the lease has run out."""
        if self._answered_at is not None and sign == self._sign:
            self._silent += min(now - self._answered_at, self._look_every)
        else:
            self._silent = 0
        self._sign, self._answered_at = sign, now
        return self._silent >= self._duration
