"""What participants of a virtual run tell the schedule, and what it answers. Plain data, fit to
cross a process.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from ray_diloco.protocol.clock import Micros
from ray_diloco.timing.shared_links import Flow

START = Micros(0)


@dataclass(frozen=True, slots=True)
class Watch:
    """Ticks at ``base + k * interval``, k from 1, of a lane that saw the first ``seen`` writes."""

    base: Micros
    interval: Micros
    seen: int

    def first_tick_after(self, moment: Micros) -> Micros:
        """The first tick later than ``moment``."""
        ticks = max(0, (moment - self.base) // self.interval) + 1
        return Micros(self.base + ticks * self.interval)


@dataclass(frozen=True, slots=True)
class Ask:
    """What a blocked participant waits for.

    ``access``: its turn at the claimed time. ``rest``: that time itself, when nothing that the
    watches look for happened before; an interrupt ends it. ``label`` names the lane. ``flow``: an
    access that only begins this transfer.
    """

    kind: Literal["access", "rest"]
    label: str
    priority: int = 0
    writes: bool = False
    flow: Flow | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """One message of a participant; ``number`` counts them from 0, so that order can be restored.

    ``time``: before it the participant accesses nothing, but for its watches; None: never of its
    own accord. ``ask``: None while it computes. ``leaves``: its last message; with a time its next
    incarnation joins then and counts its messages from 0 again.
    """

    participant: str
    number: int
    time: Micros | None
    watches: tuple[Watch, ...] = ()
    ask: Ask | None = None
    leaves: bool = False


@dataclass(frozen=True, slots=True)
class Grant:
    """The answer to the claim of that ``number`` that asked: it is ``time`` now.

    ``writes``: how many accesses that write were granted so far, this one included. ``fired``:
    the index of the watch whose tick this is; ``landed``: the label of the transfer that ends now;
    then what was asked for was not granted. ``ends``: by label, a time before which each of its
    transfers in flight does not end.
    ``interrupted``: a rest ended early. ``error``: why no answer will ever come.
    """

    participant: str
    number: int
    time: Micros
    writes: int
    fired: int | None = None
    interrupted: bool = False
    error: str | None = None
    landed: str | None = None
    ends: tuple[tuple[str, Micros], ...] = ()


class Turns(Protocol):
    """What a port needs of the clock that all participants share, whatever lies between them."""

    def tell(self, claim: Claim) -> None:
        """Deliver a claim that does not ask."""
        ...

    def ask(self, claim: Claim) -> Grant:
        """Deliver a claim that asks, and block until it is answered."""
        ...

    def interrupt(self, participant: str) -> None:
        """End the participant's present or next rest. From any thread."""
        ...

    def crashed(self, claim: Claim) -> None:
        """Deliver the last claim of a participant whose machine dies, as the scenario says: from
        here on nothing of it may run. May never return.
        """
        ...
