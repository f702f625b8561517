"""Which machine of a Ray cluster each actor goes to. Pure; `misplacement` says why there is none.

It counts with all that machines have, since Ray does not say what of each is free.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ray_diloco.cluster.labels import fits_labels

ROUNDING = 1e-6
"""Ray counts resources in parts of 10,000."""


class Strategy(StrEnum):
    """How the nodes of a run are dealt to machines."""

    spread = "spread"
    strict_spread = "strict_spread"
    pack = "pack"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What an actor asks for. ``prefix``: of the settings that say so. ``resources``: by Ray's
    names, memory in bytes; only those above 0. ``apart``: counts for the strategy. ``stays``: goes
    to the machine of the process that starts it.
    """

    prefix: str
    resources: Mapping[str, float] = field(default_factory=dict[str, float])
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    apart: bool = True
    stays: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One that lives. ``key``: Ray's id of it. ``here``: of the process that starts actors."""

    key: str
    address: str
    resources: Mapping[str, float]
    labels: Mapping[str, str]
    here: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What the actors of a run ask for, by the name of the participant."""

    asks: Mapping[str, Ask] = field(default_factory=dict[str, Ask])
    strategy: Strategy = Strategy.spread


Places = dict[str, str]
"""By name, the key of the machine."""


class NoPlace(Exception):
    """``name`` finds no machine that other actors leave room on."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def place(
    wanted: Placement, machines: Sequence[Machine], *, placed: Mapping[str, str] | None = None
) -> Places:
    """A machine for each; ``placed``: those that have theirs. NoPlace for the first that none is
    left for: with `strict_spread` always rightly, else an arrangement that exists may be missed
    where resources are tight.
    """
    asks, fixed = wanted.asks, dict(placed or {})
    if wanted.strategy is Strategy.strict_spread:
        apart = {name: ask for name, ask in asks.items() if ask.apart and name not in fixed}
        taken = {key for name, key in fixed.items() if asks[name].apart}
        fixed |= _one_each(apart, machines, taken)
    try:
        return _deal(asks, machines, fixed, pack=wanted.strategy is Strategy.pack)
    except NoPlace:
        return _deal(asks, machines, fixed, pack=True)


def suits(ask: Ask, machine: Machine, left: Mapping[str, float] | None = None) -> bool:
    """Whether the machine could take it, alone or with what is ``left``."""
    resources = machine.resources if left is None else left
    return (
        (machine.here or not ask.stays)
        and fits_labels(ask.labels, machine.labels)
        and all(
            amount <= resources.get(name, 0.0) + ROUNDING for name, amount in ask.resources.items()
        )
    )


def _one_each(asks: Mapping[str, Ask], machines: Sequence[Machine], taken: set[str]) -> Places:
    """No two on one machine: a matching, by augmenting paths."""
    owners: dict[str, str] = {}

    def seat(name: str, tried: set[str]) -> bool:
        for each in machines:
            if each.key not in tried and suits(asks[name], each):
                tried.add(each.key)
                if each.key not in owners or seat(owners[each.key], tried):
                    owners[each.key] = name
                    return True
        return False

    for name in asks:
        if not seat(name, set(taken)):
            raise NoPlace(name)
    return {name: key for key, name in owners.items()}


def _deal(
    asks: Mapping[str, Ask], machines: Sequence[Machine], fixed: Mapping[str, str], *, pack: bool
) -> Places:
    """Those that the fewest machines suit come first, and of those the largest."""
    left = {each.key: Counter(each.resources) for each in machines}
    count: Counter[str] = Counter()
    found = Places()
    for name in [*fixed, *sorted(asks.keys() - fixed, key=_urgency(asks, machines))]:
        ask = asks[name]
        free = [each.key for each in machines if suits(ask, each, left[each.key])]
        if not free and name not in fixed:
            raise NoPlace(name)
        key = fixed.get(name) or min(free, key=lambda key: -count[key] if pack else count[key])
        found[name] = key
        count[key] += ask.apart
        if key in left:
            left[key].subtract(ask.resources)
    return {name: found[name] for name in asks}


def _urgency(
    asks: Mapping[str, Ask], machines: Sequence[Machine]
) -> Callable[[str], tuple[int, list[float], int]]:
    order = {name: number for number, name in enumerate(asks)}

    def key(name: str) -> tuple[int, list[float], int]:
        suitable = sum(suits(asks[name], each) for each in machines)
        return suitable, sorted(-amount for amount in asks[name].resources.values()), order[name]

    return key
