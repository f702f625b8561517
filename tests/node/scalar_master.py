"""The master of the scalar model."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from scalar_hub import DeltaFile, FakeHub, Published, plus

from ray_diloco.protocol.global_card import GlobalCard
from ray_diloco.protocol.ranges import NO_STEPS


class Master(Protocol):
    def move(self) -> None:
        """Go on with the present round, or begin one if there is something to do."""
        ...

    def crash(self) -> None:
        """Keep only what is in the repository."""
        ...


@dataclass(kw_only=True)
class Round:
    parent: int
    follows: str | None
    result: Published
    merged: list[str]


class SumMaster:
    """Adds up deltas in order per node; some cannot be fetched, some are refused."""

    heeds_the_ledger = True

    def __init__(self, hub: FakeHub, dice: random.Random) -> None:
        self._hub = hub
        self._dice = dice
        self._round: Round | None = None
        self._rounds = 0

    def crash(self) -> None:
        self._round = None

    def move(self) -> None:
        if self._round is not None:
            self._publish(self._round)
        elif self._hub.deltas:
            self._round = self._merge()

    def _merge(self) -> Round:
        before = self._hub.published
        value, ledger, merged = before.value, before.ledger, list[str]()
        outer_step = before.card.outer_step + 1
        for path, file in self._fetched():
            merged.append(path)
            card = file.card
            if self.heeds_the_ledger and ledger.has(card, path=path, blob_id=""):
                continue
            if self._dice.random() < 0.03:
                ledger = ledger.rejected(
                    card.node_id,
                    card.nonce,
                    card.local_step,
                    covers=card.covers or NO_STEPS,
                    reason="norm",
                    path=path,
                    blob_id="",
                    outer_step=outer_step,
                )
            else:
                value = plus(value, file.content)
                ledger = ledger.merged(card, path=path, blob_id="", outer_step=outer_step)
        self._rounds += 1
        card = GlobalCard(
            outer_step=outer_step, publication_id=str(self._rounds), nodes=ledger.rows
        )
        return Round(
            parent=self._hub.head,
            follows=before.card.publication_id,
            result=Published(card=card, value=value, ledger=ledger),
            merged=merged,
        )

    def _fetched(self) -> Iterator[tuple[str, DeltaFile]]:
        """In order; when one of a node cannot be fetched, its later ones wait."""
        files = sorted(self._hub.deltas.items(), key=lambda item: item[1].card.local_step)
        waiting: set[tuple[str, str | None]] = set()
        for path, file in files:
            who = (file.card.node_id, file.card.nonce)
            if who not in waiting and self._dice.random() < 0.9:
                yield path, file
            else:
                waiting.add(who)

    def _publish(self, planned: Round) -> None:
        hub = self._hub

        def change() -> None:
            hub.published = planned.result
            for path in planned.merged:
                hub.deltas.pop(path, None)

        hub.commit(change, parent=planned.parent)
        if hub.published.card.publication_id == planned.follows:
            planned.parent = hub.head
        else:
            self._round = None
