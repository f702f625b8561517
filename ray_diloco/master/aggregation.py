"""The mean of a round's deltas, piece by piece: memory does not grow with their number.

The rule, bit for bit: in float32, start from zero, add the deltas sorted by (node, step, path) one
after the other, divide by their number; `sum(deltas) / n`. Complex entries are pairs of real
numbers. The pass that adds also finds each delta's norm and whatever is not finite.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ray_diloco.protocol.delta_card import DeltaCard
from ray_diloco.tensors.delta_file import DeltaReader
from ray_diloco.tensors.dtypes import PIECE
from ray_diloco.tensors.pseudo_gradient import Tally
from ray_diloco.tensors.schema import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedDelta:
    """A delta on disk that `check_file` accepted. ``path``: where it lies in the repository."""

    path: str
    file: Path
    card: DeltaCard

    @property
    def from_peer(self) -> bool:
        """A plain peer names no nonce."""
        return self.card.nonce is None


def in_merge_order(deltas: Iterable[FetchedDelta]) -> tuple[FetchedDelta, ...]:
    """Sorted by (node, step, path): the order in which they are added."""
    return tuple(
        sorted(deltas, key=lambda delta: (delta.card.node_id, delta.card.local_step, delta.path))
    )


@dataclass(slots=True)
class OpenDelta:
    """A delta in the middle of a pass."""

    delta: FetchedDelta
    reader: DeltaReader
    tally: Tally = field(default_factory=Tally)


class PieceBuffers:
    """Memory for one piece: what a pass needs, whatever the number of deltas."""

    def __init__(self) -> None:
        self._sum = torch.empty(PIECE)
        self._piece = torch.empty(PIECE)

    def mean(
        self, deltas: Sequence[OpenDelta], entry: Entry, start: int, stop: int
    ) -> torch.Tensor:
        """The mean of numbers ``start`` to ``stop`` of an entry: float32, flat, valid until the
        next call. Counts each delta's piece in its tally.
        """
        total, piece = self._sum[: stop - start], self._piece[: stop - start]
        for place, each in enumerate(deltas):
            each.reader.read_piece(entry, start, piece)
            each.tally.add(piece)
            if place == 0:
                torch.add(piece, 0.0, out=total)  # not a copy: 0 + -0.0 is 0.0, as in `sum`
            else:
                total.add_(piece)
        return total.div_(len(deltas))

    def mean_value(
        self,
        deltas: Sequence[OpenDelta],
        bases: Sequence[torch.Tensor | None],
        entry: Entry,
        start: int,
        stop: int,
    ) -> torch.Tensor | None:
        """The mean of the nodes' absolute values of statistics: float32, flat, valid until the
        next call.

        ``bases``: per delta the whole entry of the global that it is measured from, None when
        unknown. Those are left out, and so is a variance that comes out negative, which only a
        peer's can: its later deltas are measured from its earlier ones. None when nothing is left.
        """
        total, piece = self._sum[: stop - start], self._piece[: stop - start]
        total.zero_()
        counted = 0
        for each, base in zip(deltas, bases, strict=True):
            each.reader.read_piece(entry, start, piece)
            each.tally.add(piece, statistics=True)
            if base is None:
                continue
            torch.sub(base[start:stop], piece, out=piece)
            if is_variance(entry) and bool((piece < 0).any()):
                continue
            total.add_(piece)
            counted += 1
        return total.div_(counted) if counted else None


def is_variance(entry: Entry) -> bool:
    """Whether statistics cannot be negative, by the name that torch's layers give them."""
    return entry.statistics and entry.name.rpartition(".")[2] == "running_var"
