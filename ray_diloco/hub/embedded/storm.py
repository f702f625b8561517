"""Faults drawn for each request, by kind and probability: what `hub.strict` and `hub.faults` ask.

What a request suffers depends on the seed, its route, its path and how often it was asked, not on
how requests of several participants interleave.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Mapping

from aiohttp import web

from ray_diloco.hub.embedded.strict import (
    HUB_COMMITS_PER_HOUR,
    STRICT,
    Fault,
    FaultKind,
    Plan,
    Rules,
    no_faults,
    quota_text,
)
from ray_diloco.hub.settings import HubSettings

BURST = 4
"""Requests that an outbreak of server errors hits."""
SERVER_ERRORS = (500, 502, 503, 504)

ROUTES: Mapping[str, frozenset[str]] = {
    "busy": frozenset({"commit"}),
    "quota": frozenset({"commit"}),
    "landed_500": frozenset({"commit"}),
    "truncate": frozenset({"resolve"}),
    "flip": frozenset({"resolve"}),
    "lag": frozenset({"info", "resolve", "tree", "paths_info"}),
    "slow": frozenset({"resolve", "upload"}),
    "expire": frozenset({"upload"}),
}
"""Where a kind can strike; those that are not named strike everywhere."""


def rules_of(settings: HubSettings) -> Rules:
    """The rules of the run's own hub."""
    return STRICT if settings.strict else Rules()


def plan_of(settings: HubSettings, *, seed: int) -> Plan:
    """The faults of the run's own hub."""
    if not settings.faults:
        return no_faults
    return Storm(settings.faults, seed=seed, seconds=settings.fault_seconds)


class Storm:
    """A plan. ``faults``: probability of each kind, per request that it can strike. ``seconds``:
    length of stalls, slow files, and waits after a 429.
    """

    def __init__(self, faults: Mapping[str, float], *, seed: int, seconds: float) -> None:
        self._faults = {kind: chance for kind, chance in faults.items() if chance > 0}
        self._seed = seed
        self._seconds = seconds
        self._asked: Counter[str] = Counter()
        self._burst = 0
        self.struck: Counter[str] = Counter()
        """How often each kind has struck."""

    def __call__(self, route: str, request: web.Request) -> Fault | None:
        place = f"{request.method} {route} {request.path}"
        self._asked[place] += 1
        rng = _drawn(f"{self._seed} {place} {self._asked[place]}")
        kind = self._kind(route, rng)
        if kind is None:
            return None
        self.struck[kind] += 1
        return self._fault(kind, rng)

    def _kind(self, route: str, rng: random.Random) -> str | None:
        if self._burst:
            self._burst -= 1
            return "errors"
        for kind, chance in self._faults.items():
            struck = rng.random() < chance
            if struck and route in ROUTES.get(kind, {route}):
                self._burst = BURST - 1 if kind == "errors" else 0
                return kind
        return None

    def _fault(self, kind: str, rng: random.Random) -> Fault:
        match kind:
            case "busy":
                text = "Another commit operation is in progress"
                return Fault(kind=FaultKind.refuse, status=409, text=text)
            case "quota":
                return Fault(
                    kind=FaultKind.refuse,
                    status=429,
                    text=quota_text(HUB_COMMITS_PER_HOUR),
                    retry_after=max(1, round(self._seconds)),
                )
            case "errors":
                return Fault(kind=FaultKind.refuse, status=rng.choice(SERVER_ERRORS))
            case "expire":
                return Fault(kind=FaultKind.refuse, status=403, text="this address has expired")
            case _:
                return Fault(kind=FaultKind(kind), seconds=self._seconds)


def _drawn(place: str) -> random.Random:
    return random.Random(hashlib.sha256(place.encode()).digest())
