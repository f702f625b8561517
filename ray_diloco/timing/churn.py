"""When a simulated machine is there: it joins, goes away without a word, comes back, leaves."""

import math
from dataclasses import dataclass

from ray_diloco.protocol.clock import Micros, micros
from ray_diloco.timing.claims import START
from ray_diloco.timing.profile import NodeProfile


class ScriptedCrash(BaseException):
    """The machine died, as the scenario says. ``back``: when its next incarnation joins, None:
    never. No `Exception`: nobody may catch it but who runs participants.
    """

    def __init__(self, participant: str, back: Micros | None) -> None:
        super().__init__(f"{participant} crashed, as the scenario says")
        self.participant = participant
        self.back = back


@dataclass(frozen=True, slots=True)
class Outage:
    """From ``at`` on the machine is away; at ``until`` it is back, None: never."""

    at: Micros
    until: Micros | None


def joins_at(profile: NodeProfile | None, *, since: Micros = START) -> Micros:
    """When the first incarnation begins of a run that goes on at ``since``: a machine that is away
    then, when it is back; one that had died for good is another one now.
    """
    if profile is None:
        return since
    for outage in outages(profile):
        if outage.until is not None and outage.at <= since < outage.until:
            return outage.until
    return max(since, micros(profile.join_at))


def outages(profile: NodeProfile) -> tuple[Outage, ...]:
    """All of them, in order."""
    found = [Outage(micros(at), _moment(until)) for at, until in _stretches(profile)]
    return tuple(sorted(found, key=lambda outage: outage.at))


def next_outage(profile: NodeProfile | None, started_at: Micros) -> Outage | None:
    """The one that ends the incarnation that began at ``started_at``."""
    coming = outages(profile) if profile is not None else ()
    return next((outage for outage in coming if outage.at >= started_at), None)


def _stretches(profile: NodeProfile) -> list[tuple[float, float]]:
    listed = [(at, until) for at, until in profile.away]
    if profile.crash_at is None:
        return listed
    after = math.inf if profile.recover_after is None else profile.recover_after
    return [*listed, (profile.crash_at, profile.crash_at + after)]


def _moment(seconds: float) -> Micros | None:
    return None if math.isinf(seconds) else micros(seconds)
