"""The real `OuterLoop` as the master of the scalar model: counts for tensors, rounds by dice."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scalar_hub import DeltaFile, FakeHub, Published, State, plus

from ray_diloco.hub.repository import FileEntry
from ray_diloco.master.outer_loop import OuterLoop
from ray_diloco.master.publication import Candidate, Publication
from ray_diloco.protocol.clock import Micros


@dataclass(kw_only=True)
class Planned:
    """A round that was composed and is to be committed."""

    parent: int
    publication: Publication
    result: Published


class LoopMaster:
    """Some deltas cannot be fetched, some are refused by their header, some by their values."""

    loop_type: type[OuterLoop] = OuterLoop

    def __init__(self, hub: FakeHub, dice: random.Random) -> None:
        self._hub = hub
        self._dice = dice
        self._loop: OuterLoop | None = None
        self._value: State = Counter()
        self._round: Planned | None = None
        self._rounds = 0

    def crash(self) -> None:
        self._loop = self._round = None

    def move(self) -> None:
        if self._loop is None:
            published = self._hub.published
            self._loop = self.loop_type(card=published.card, ledger=published.ledger, now=Micros(0))
            self._value = published.value
        if self._round is not None:
            self._publish(self._loop, self._round)
        elif self._hub.deltas:
            self._round = self._compose(self._loop)

    def _compose(self, loop: OuterLoop) -> Planned | None:
        if not loop.is_current(self._hub.published.card):
            self.crash()  # a late publication of an earlier one is where the next one goes on from
            return None
        look = loop.look(self._listing(), now=Micros(0))
        for entry in look.deltas:
            if self._dice.random() < 0.9:
                loop.learned(entry, self._hub.deltas[entry.path].card)
                self._judge(loop, entry)
        ready = loop.ready(self._dice.choice([None, 1, 2]))
        for candidate in ready:
            self._judge(loop, candidate.entry)
        merged = [each for each in ready if each in loop.ready()]
        if not merged and not loop.nothing_left():
            return None
        return self._planned(loop, merged)

    def _judge(self, loop: OuterLoop, entry: FileEntry) -> None:
        if self._dice.random() < 0.02:
            loop.refused(entry, "norm")

    def _planned(self, loop: OuterLoop, merged: Sequence[Candidate]) -> Planned:
        self._rounds += 1
        publication = loop.compose(merged, counted=len(merged))
        value = self._value
        for candidate in merged:
            value = plus(value, self._hub.deltas[candidate.entry.path].content)
        card = replace(publication.card, publication_id=str(self._rounds))
        result = Published(card=card, value=value, ledger=publication.ledger)
        return Planned(parent=self._hub.head, publication=publication, result=result)

    def _publish(self, loop: OuterLoop, planned: Planned) -> None:
        hub = self._hub

        def change() -> None:
            hub.published = planned.result
            for entry in planned.publication.deletions:
                hub.deltas.pop(entry.path, None)

        hub.commit(change, parent=planned.parent)
        found = hub.published.card
        if found.publication_id == planned.result.card.publication_id:
            loop.published(planned.publication, found)
            self._value, self._round = planned.result.value, None
            return
        match loop.conflict(planned.publication, self._listing(), found):
            case "retry":
                planned.parent = hub.head
            case "discard":
                self._round = None
            case "superseded":
                self.crash()

    def _listing(self) -> list[FileEntry]:
        return [
            FileEntry(path=path, size=1, blob_id=_blob_id(file), sha256=None)
            for path, file in self._hub.deltas.items()
        ]


def _blob_id(file: DeltaFile) -> str:
    return f"{file.card.identity} {sorted(file.content.items())}"
