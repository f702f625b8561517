"""The hub of the scalar model: files with counts for tensors, and answers that get lost.

A *unit* is one local step of one incarnation of a node. A state of the model counts how often it
holds each unit, a delta is the difference of two states, and the outer step is their sum: so what
is lost or doubled anywhere shows in the global.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from ray_diloco.protocol.delta_card import DeltaCard
from ray_diloco.protocol.global_card import GlobalCard
from ray_diloco.protocol.ledger import Ledger

Unit = tuple[str, str, int]
"""(node id, nonce, local step)"""
State = Counter[Unit]
NAN: Unit = ("not a number", "", 0)
"""What a step leaves that went wrong: it spreads like any unit, but must never reach the global."""


def plus(a: State, b: State, *, times: int = 1) -> State:
    total = Counter(a)
    for unit, count in b.items():
        total[unit] += times * count
    return Counter({unit: count for unit, count in total.items() if count})


Answer = Literal["landed", "refused", "unknown", "conflict"]
Fate = Literal["landed", "refused", "landed unheard", "late", "never"]
FATES: dict[Fate, int] = {"landed": 72, "refused": 10, "landed unheard": 6, "late": 6, "never": 6}


@dataclass(frozen=True, kw_only=True)
class DeltaFile:
    card: DeltaCard
    content: State


@dataclass(frozen=True, kw_only=True)
class Published:
    """What one atomic publication holds."""

    card: GlobalCard = field(default_factory=lambda: GlobalCard(outer_step=0, publication_id="0"))
    value: State = field(default_factory=Counter)
    ledger: Ledger = field(default_factory=Ledger)


class FakeHub:
    """Files and one global; a commit may be refused, unheard, late or lost."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._late: list[tuple[int | None, Callable[[], None]]] = []
        self.head = 0
        self.deltas: dict[str, DeltaFile] = {}
        self.published = Published()

    def commit(self, change: Callable[[], None], *, parent: int | None = None) -> Answer:
        (fate,) = self._dice.choices(list(FATES), weights=list(FATES.values()))
        match fate:
            case "landed":
                return self._apply(parent, change)
            case "landed unheard":
                self._apply(parent, change)
            case "late":
                self._late.append((parent, change))
            case "refused":
                return "refused"
            case "never":
                pass
        return "unknown"

    def _apply(self, parent: int | None, change: Callable[[], None]) -> Answer:
        if parent is not None and parent != self.head:
            return "conflict"
        change()
        self.head += 1
        return "landed"

    def pass_time(self) -> None:
        if self._late and self._dice.random() < 0.3:
            self._apply(*self._late.pop(self._dice.randrange(len(self._late))))

    @property
    def quiet(self) -> bool:
        """Nothing is on its way to the global any more."""
        return not self._late and not self.deltas
