"""Wall time: lanes are threads, and time is the machine's."""

import logging
import random
import threading
import time
from datetime import UTC, datetime
from typing import Any

from ray_diloco.protocol.clock import (
    MICROS_PER_SECOND,
    Access,
    Compute,
    Effect,
    Idle,
    Lane,
    LaneOutcome,
    Micros,
    Sleep,
    Transfer,
)
from ray_diloco.timing.profile import NodeProfile, draw_step

logger = logging.getLogger(__name__)

_TRAINING = ""
"""Stands for the participant's own thread among the names of lanes."""


class WallClock:
    """Reads wall time since a start that all participants of a run share."""

    def __init__(self, started_at: float | None = None) -> None:
        """``started_at``: the run's start in Unix seconds; None: now.

        From here on the time is monotonic; only the distance to the start comes from the system's
        clock, so that processes agree as well as their machines' clocks do.
        """
        since_start = 0.0 if started_at is None else time.time() - started_at
        self._zero = time.monotonic_ns() - round(since_start * 1e9)

    def now(self) -> Micros:
        """Time since the run started."""
        return Micros((time.monotonic_ns() - self._zero) // 1000)

    def utc(self) -> str:
        """ISO 8601 UTC with microseconds, by the system's clock."""
        return datetime.now(UTC).isoformat(timespec="microseconds")


class WallPort:
    """The port of one participant in wall time."""

    def __init__(
        self,
        *,
        profile: NodeProfile | None = None,
        rng: random.Random | None = None,
        started_at: float | None = None,
    ) -> None:
        """With a ``profile``, steps and transfers are slowed down to it; None takes them as they
        come. ``rng``: for the profile's jitter. ``started_at``: see `WallClock`.
        """
        self._clock = WallClock(started_at)
        self._profile = profile
        self._rng = rng or random.Random(0)
        self._step_ends: Micros | None = None
        self._changed = threading.Condition()
        self._lanes: dict[str, threading.Thread] = {}
        self._finished: list[LaneOutcome] = []
        self._waits_to_end = 0
        self._interrupts = 0
        self._heeded: dict[str, int] = {}
        self._closed = False

    def now(self) -> Micros:
        return self._clock.now()

    def utc(self) -> str:
        return self._clock.utc()

    def before_step(
        self,
        quiet_steps: int,  # noqa: ARG002 - only virtual time looks ahead
        quiet_until: Micros | None = None,  # noqa: ARG002
    ) -> None:
        if self._profile is not None:
            self._step_ends = Micros(self.now() + draw_step(self._profile, self._rng))

    def after_step(self) -> None:
        """Sleeps what the step was faster than its profile; an interrupt ends the sleep."""
        if self._step_ends is not None:
            self._pause(_TRAINING, Micros(self._step_ends - self.now()))
            self._step_ends = None

    def start(self, name: str, lane: Lane) -> None:
        with self._changed:
            if self._closed:
                raise RuntimeError(f"lane {name!r} cannot start: the port is closed")
            if name in self._lanes:
                raise RuntimeError(f"lane {name!r} is still running")
            thread = threading.Thread(
                target=self._run, args=(name, lane), name=f"lane-{name}", daemon=True
            )
            self._lanes[name] = thread
            thread.start()  # before anybody can see it: `close` joins what it sees

    def collect(self) -> list[LaneOutcome]:
        with self._changed:
            finished, self._finished = self._finished, []
        return finished

    def wait(self, until: Micros | None = None) -> None:
        with self._changed:
            while not self._finished and not self._waits_to_end:
                left = None if until is None else (until - self.now()) / MICROS_PER_SECOND
                if left is not None and left <= 0:
                    return
                self._changed.wait(left)
            if not self._finished:
                self._waits_to_end = 0

    def interrupt(self) -> None:
        with self._changed:
            self._waits_to_end = 1
            self._interrupts += 1
            self._changed.notify_all()

    def close(self, timeout: float = 5.0) -> None:
        """Interrupts, then waits at most ``timeout`` seconds for all lanes together.

        A lane that is inside a call when the time is up is left behind (its thread is a daemon)
        and ends at its next effect. What finished can still be collected. Closing twice is allowed.
        """
        with self._changed:
            self._closed = True
            lanes = dict(self._lanes)
        self.interrupt()
        deadline = time.monotonic() + timeout
        for name, thread in lanes.items():
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                logger.warning(
                    "lane %r did not end within %.1f s and is left behind", name, timeout
                )

    def _run(self, name: str, lane: Lane) -> None:
        value, error = None, None
        try:
            value = self._drive(name, lane)
        except Exception as raised:
            error = raised
        except BaseException as raised:  # SystemExit and the like would end the thread unseen
            error = RuntimeError(f"lane {name!r} was ended by {raised!r}")
            error.__cause__ = raised
        with self._changed:
            del self._lanes[name]
            self._finished.append(
                LaneOutcome(name=name, value=value, error=error, finished_at=self.now())
            )
            self._changed.notify_all()

    def _drive(self, name: str, lane: Lane) -> Any:
        result, error = None, None
        while True:
            try:
                effect = lane.throw(error) if error is not None else lane.send(result)
            except StopIteration as end:
                return end.value
            if self._closed:
                lane.close()
                raise RuntimeError(f"lane {name!r} was given up: the port is closed")
            result, error = None, None
            try:
                result = self._perform(name, effect)
            except Exception as raised:
                error = raised

    def _perform(self, name: str, effect: Effect) -> Any:
        match effect:
            case Access():
                return effect.call()
            case Sleep():
                self._pause(name, effect.duration)
            case Transfer():
                if self._profile is not None:
                    link = self._profile.link
                    self._pause(name, link.transfer_time(effect.direction, effect.size))
            case Idle():
                left = effect.interval if effect.until is None else effect.until - self.now()
                self._pause(name, Micros(min(effect.interval, left)))
            case Compute():
                return effect.work() if effect.work is not None else None
        return None

    def _pause(self, name: str, duration: Micros) -> None:
        """Wait, unless an interrupt came since the last pause of this lane, or comes."""
        ends = self.now() + duration
        with self._changed:
            while self._interrupts == self._heeded.get(name, 0) and not self._closed:
                left = ends - self.now()
                if left <= 0:
                    break
                self._changed.wait(left / MICROS_PER_SECOND)
            self._heeded[name] = self._interrupts


def start_of_run() -> float:
    """This moment in Unix seconds, to be handed to all participants as ``started_at``."""
    return time.time()
