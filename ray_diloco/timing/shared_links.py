"""Links that several transfers share: max-min fair, each never faster than its machine's own link.

Every transfer in flight gets an equal part of the tightest link on its way; what it cannot use goes
to the others (progressive filling; Bertsekas and Gallager, Data Networks, 6.5.2). Rates only change
when a transfer begins or ends, and what begins later can only delay an end that is projected now.
"""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from ray_diloco.protocol.clock import Micros


@dataclass(frozen=True, slots=True)
class Flow:
    """A transfer over shared links. Rates in bytes per microsecond. ``own``: its machine's link,
    None: no limit. ``shared``: name and rate of each link on its way, at least one.
    """

    size: int
    own: float | None
    shared: tuple[tuple[str, float], ...]


class SharedLinks:
    """All transfers in flight, and when each will have ended if no other begins."""

    def __init__(self) -> None:
        self._now = 0.0
        self._flows: dict[Hashable, Flow] = {}
        self._left: dict[Hashable, float] = {}
        self._ends: dict[Hashable, Micros] = {}

    def begin(self, key: Hashable, flow: Flow, at: Micros) -> None:
        """One more, at a time not before the last."""
        self._pass(float(at))
        self._flows[key], self._left[key] = flow, float(flow.size)
        self._project()

    def end(self, key: Hashable) -> Micros:
        """When it ends, or has ended: a lower bound while others may still begin."""
        return self._ends[key]

    def forget(self, key: Hashable) -> None:
        """Its end has been told."""
        del self._ends[key]

    def _pass(self, until: float) -> None:
        """Move on, past the ends that lie in between."""
        while self._flows:
            rates = fair_rates(self._flows)
            after = min(self._left[key] / rate for key, rate in rates.items())
            step = min(after, until - self._now)
            self._move(rates, step)
            if self._now >= until:
                break
        self._now = until

    def _move(self, rates: Mapping[Hashable, float], step: float) -> None:
        self._now += step
        for key, rate in rates.items():
            left = self._left[key] - rate * step
            if left <= 1e-6:
                del self._flows[key], self._left[key]
            else:
                self._left[key] = left

    def _project(self) -> None:
        flows, left, now = dict(self._flows), dict(self._left), self._now
        while self._flows:
            before = set(self._flows)
            rates = fair_rates(self._flows)
            self._move(rates, min(self._left[key] / rate for key, rate in rates.items()))
            for key in before - set(self._flows):
                self._ends[key] = Micros(math.ceil(self._now - 1e-6))
        self._flows, self._left, self._now = flows, left, now


def fair_rates(flows: Mapping[Hashable, Flow]) -> dict[Hashable, float]:
    """Bytes per microsecond of each transfer in flight."""
    rates: dict[Hashable, float] = {}
    while len(rates) < len(flows):
        open_flows = {key: flow for key, flow in flows.items() if key not in rates}
        shares = _shares(flows, rates)
        offers = {key: _offer(flow, shares) for key, flow in open_flows.items()}
        least = min(offers.values())
        rates |= {key: offer for key, offer in offers.items() if offer <= least * (1 + 1e-12)}
    return rates


def _shares(flows: Mapping[Hashable, Flow], rates: Mapping[Hashable, float]) -> dict[str, float]:
    """By link: what is left of it for each transfer whose rate is still open."""
    left: dict[str, float] = {}
    users: dict[str, int] = {}
    for key, flow in flows.items():
        for name, capacity in flow.shared:
            left[name] = left.get(name, capacity) - rates.get(key, 0.0)
            users[name] = users.get(name, 0) + (key not in rates)
    return {name: left[name] / count for name, count in users.items() if count}


def _offer(flow: Flow, shares: Mapping[str, float]) -> float:
    offer = min(shares[name] for name, _ in flow.shared)
    return offer if flow.own is None else min(offer, flow.own)
