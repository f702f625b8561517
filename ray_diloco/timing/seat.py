"""A participant as the schedule sees it, and how that is told."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from ray_diloco.protocol.clock import Micros
from ray_diloco.timing.claims import Ask, Watch

MOST_DESCRIBED = 12
"""Participants that one line names."""


@dataclass(slots=True, eq=False)
class Seat:
    """What the schedule knows of a participant.

    ``time``, ``watches``, ``ask``, ``number``: those of its latest claim. ``flows``: label of each
    transfer in flight, and which of the run's it is. ``floor``: it promised no
    access before. ``due``: where it stands in line. ``version``: tells
    its present entry in the heap from older ones. ``poked``: its next rest ends at once.
    """

    name: str
    floor: Micros
    time: Micros | None
    due: Micros | None = None
    watches: tuple[Watch, ...] = ()
    flows: dict[str, int] = field(default_factory=dict[str, int])
    ask: Ask | None = None
    number: int = -1
    version: int = 0
    poked: bool = False


def describe(seats: Iterable[Seat]) -> str:
    """Who waits for what, in one line; of many, those whom the others wait for."""
    known = sorted(seats, key=lambda seat: seat.name)
    more = len(known) - MOST_DESCRIBED
    if more > 0:
        known = sorted(known, key=_comes_before)[:MOST_DESCRIBED]
    told = "; ".join(map(_describe, known))
    return told + (f"; and {more} more" if more > 0 else "")


def _comes_before(seat: Seat) -> tuple[bool, float, str]:
    due = math.inf if seat.due is None else seat.due
    return seat.ask is not None, due, seat.name


def _describe(seat: Seat) -> str:
    ask = seat.ask
    when = "never" if seat.due is None else f"at {seat.due / 1e6:.6f} s"
    if ask is None:
        return f"{seat.name} computes, next access {when} or later"
    watched = ", or until somebody writes" if seat.watches else ""
    return f"{seat.name} waits for {ask.label!r} {when}{watched}"
