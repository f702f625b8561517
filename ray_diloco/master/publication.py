"""What the outer loop speaks of: deltas that may be merged or are refused, and the next global."""

from dataclasses import dataclass

from ray_diloco.hub.repository import FileEntry
from ray_diloco.protocol.delta_card import DeltaCard
from ray_diloco.protocol.global_card import GlobalCard
from ray_diloco.protocol.ledger import Ledger
from ray_diloco.protocol.ranges import NO_STEPS, StepRanges


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A delta that was fetched, and whose header was read."""

    entry: FileEntry
    card: DeltaCard


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A delta whose content is wrong. ``card`` is None when not even its header could be read."""

    entry: FileEntry
    card: DeltaCard | None
    reason: str

    @property
    def covers(self) -> StepRanges:
        return (self.card.cells if self.card is not None else None) or NO_STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What the next commit says; it counts once it has landed.

    ``card`` lacks only what the files decide: hashes, time and publication id. ``merged`` and
    ``refused`` are in ledger order; ``deletions`` also has deltas that the ledger had already.
    ``with_state``: the outer state is among its files.
    """

    card: GlobalCard
    ledger: Ledger
    merged: tuple[Candidate, ...] = ()
    refused: tuple[Refusal, ...] = ()
    deletions: tuple[FileEntry, ...] = ()
    with_state: bool = True
    closing: bool = False
