"""The seam between the protocol and time: what a participant asks of time, and what its lanes
yield.

A *lane* is a piece of exchange work that runs beside the training: an upload, a poll, a round of
the master. It is a generator that yields effects and gets their results back; who runs it decides
what time means. In wall time a thread runs it; in virtual time the same generator is driven by a
discrete-event scheduler. Work between two yields (disk, moving blobs by hash) takes no virtual time
unless a `Compute` or a `Transfer` says so.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal, NewType, Protocol

Micros = NewType("Micros", int)
"""Microseconds: a duration, or a point in the run's time counted from its start. Virtual or
wall, never mixed.
"""

MICROS_PER_SECOND = 1_000_000


def micros(seconds: float) -> Micros:
    """Microseconds of so many seconds, rounded to the nearest."""
    return Micros(round(seconds * MICROS_PER_SECOND))


@dataclass(frozen=True, slots=True)
class Sleep:
    """Let so much time pass. Gives None. Ends early, also with None, when the port is
    interrupted.
    """

    duration: Micros


@dataclass(frozen=True, slots=True)
class Compute:
    """The cost in virtual time of the work just done. In wall time it took what it took, and
    this is free.
    """

    duration: Micros


@dataclass(frozen=True, slots=True)
class Transfer:
    """So many bytes went over this participant's link. In wall time free, unless links are
    emulated.
    """

    direction: Literal["up", "down"]
    size: int


@dataclass(frozen=True, slots=True)
class Access:
    """A lookup or a commit: gives what ``call()`` returns, raises in the lane what it raises.

    In virtual time accesses of all participants are totally ordered by (time, priority, participant
    id): the only points where they see each other. A lower ``priority`` goes first at equal time.
    """

    call: Callable[[], Any]
    priority: int = 0


Effect = Sleep | Compute | Transfer | Access

Lane = Generator[Effect, Any, Any]
"""What a lane is: yields effects, returns its outcome. Errors that it raises become the
outcome's ``error``.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneOutcome:
    """The end of a lane: ``value`` is what it returned, or ``error`` what it raised (then
    ``value`` is None).
    """

    name: str
    value: Any
    error: Exception | None
    finished_at: Micros


class Clock(Protocol):
    """Reads the run's time."""

    def now(self) -> Micros:
        """Time since the run started."""
        ...

    def utc(self) -> str:
        """The same moment as ISO 8601 UTC with microseconds, for `updated_at`, `sent_at` and
        `started`.
        """
        ...


class Port(Clock, Protocol):
    """What one participant (a node or the master) may ask of time. One thread calls it, but for
    `interrupt`.
    """

    def before_step(self, quiet_steps: int) -> None:
        """A local step begins; at least ``quiet_steps`` steps, this one included, end before a
        lane can be started.
        """
        ...

    def after_step(self) -> None:
        """The step is done: let the time pass that the profile says it takes."""
        ...

    def start(self, name: str, lane: Lane) -> None:
        """Run a lane beside the caller, from now. One lane of a name at a time (RuntimeError
        otherwise).
        """
        ...

    def collect(self) -> list[LaneOutcome]:
        """Lanes that have finished by now and were not collected yet, in the order in which they
        finished.
        """
        ...

    def wait(self, until: Micros | None = None) -> None:
        """Return when a lane has finished that was not collected, at ``until``, or when
        interrupted.
        """
        ...

    def interrupt(self) -> None:
        """End the present or the next `wait` at once, and every `Sleep` of a lane. From any
        thread; stays in force.
        """
        ...

    def close(self) -> None:
        """The participant leaves: lanes that still run are given up."""
        ...
