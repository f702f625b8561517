"""One lane of a participant in virtual time: a generator, what it yielded last, and when it goes
on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ray_diloco.protocol.clock import Access, Effect, Idle, Lane, LaneOutcome, Micros
from ray_diloco.timing.claims import START, Watch
from ray_diloco.timing.shared_links import Flow


@dataclass(slots=True, eq=False)
class VirtualLane:
    """``due``: when it goes on of its own accord; None: only when its watch fires.

    ``watch``: set while it idles; ``next_tick``: no tick before it can matter. ``flow``: a transfer
    over shared links that begins when it is due; ``flying``: it has begun, and does not end before
    ``next_tick``. ``seen``: how many
    writes of all participants lie before its name's latest look; None before the first.
    ``value`` or ``error`` is what the generator gets next.
    """

    name: str
    order: int
    generator: Lane
    due: Micros | None
    effect: Effect | None = None
    watch: Watch | None = None
    next_tick: Micros = START
    flow: Flow | None = None
    flying: bool = False
    seen: int | None = None
    value: Any = None
    error: Exception | None = None

    def idle(self, effect: Idle, now: Micros) -> None:
        """Waits for ticks; a lane that never looked takes the first one."""
        if self.seen is None:
            tick = Micros(now + max(0, effect.interval))
            self.due = tick if effect.until is None else max(now, min(tick, effect.until))
            return
        self.watch = Watch(now, Micros(max(1, effect.interval)), self.seen)
        self.next_tick = self.watch.first_tick_after(now)
        self.due = None if effect.until is None else max(now, effect.until)

    def no_tick_up_to(self, moment: Micros) -> None:
        """Nothing that the watch looks for happened before ``moment``."""
        if self.watch is not None:
            self.next_tick = max(self.next_tick, self.watch.first_tick_after(moment))

    def take_off(self) -> None:
        """Its transfer begins; only the schedule knows when it ends."""
        self.flow, self.flying, self.due = None, True, None

    def wake(self, now: Micros) -> None:
        """Goes on at ``now``, whatever it waited for."""
        self.watch = None
        self.due = now

    def perform(self, call: Callable[[], Any]) -> None:
        """Calls; the result, or the error, is what the generator gets next."""
        try:
            self.value = call()
        except Exception as error:
            self.error = error

    def resume(self, now: Micros) -> Effect | LaneOutcome:
        """Runs the generator up to its next effect or its end. An exception that is not an
        `Exception` (KeyboardInterrupt) goes through to the caller.
        """
        self.watch, self.effect, self.flow, self.flying = None, None, None, False
        value, error = self.value, self.error
        self.value, self.error = None, None
        try:
            if error is not None:
                self.effect = self.generator.throw(error)
            else:
                self.effect = self.generator.send(value)
        except StopIteration as end:
            return LaneOutcome(name=self.name, value=end.value, error=None, finished_at=now)
        except Exception as raised:
            return LaneOutcome(name=self.name, value=None, error=raised, finished_at=now)
        return self.effect

    @property
    def access(self) -> Access | None:
        """The access that it is about to make, if it is one."""
        return self.effect if isinstance(self.effect, Access) else None
