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
    """The cost in virtual time of the work just done, or of ``work``, done now. Gives what ``work``
    returns (None without), raises in the lane what it raises.

    Handing over long work lets the other participants go on beside it in virtual time. In wall time
    it takes what it takes, and ``duration`` counts for nothing.
    """

    duration: Micros
    work: Callable[[], Any] | None = None


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

    ``kind``: after a ``write`` others may see something new (the safe answer). A ``look`` asks what
    the newest state is, a ``read`` anything else (a pinned file, a blob that is staged). ``memo``:
    in virtual time, an access of this participant under the same memo gives what the last one gave,
    without a call, when there was no write in between.
    """

    call: Callable[[], Any]
    priority: int = 0
    kind: Literal["write", "look", "read"] = "write"
    memo: str | None = None


@dataclass(frozen=True, slots=True)
class Idle:
    """Between two looks of a lane that polls: let ``interval`` pass, or less to end at ``until``.
    Gives None. Ends early, also with None, when the port is interrupted.

    In virtual time it jumps over looks that would find nothing: it lasts whole multiples of
    ``interval``, up to the first that comes after a write, of any participant, later than the
    latest look that gave something, of this lane or of the one before it of the same name. Before
    any look it is a `Sleep`.
    With nobody left who could write, and no ``until``, it never ends: a standstill.
    """

    interval: Micros
    until: Micros | None = None


Effect = Sleep | Compute | Transfer | Access | Idle

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

    def before_step(self, quiet_steps: int, quiet_until: Micros | None = None) -> None:
        """A local step begins; at least ``quiet_steps`` steps, this one included, end before a
        lane can be started, unless the outcome of a running lane leads to one. With
        ``quiet_until`` one can also be started at the end of any step at or after that time.
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
        """End the present `wait`, or the next one when there is none, at once; and the pause of
        each lane that is under way: `Sleep`, `Idle`, an emulated transfer. In wall time also the
        next pause of a lane that is in none, so that no wish is lost. From any thread.
        """
        ...

    def close(self) -> None:
        """The participant leaves: lanes that still run are given up."""
        ...
