"""The mean of a round's deltas, piece by piece: memory does not grow with their number.

The rule, bit for bit: in float32, start from zero, add the deltas sorted by (node, step, path) one
after the other, divide by their number; `sum(deltas) / n`. Complex entries are pairs of real
numbers. The pass that adds also finds each delta's norm and whatever is not finite.
Other rules (`recipe`) are sums of shares in the same order, or look at columns: one piece of every
delta at once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ray_diloco.master.recipe import Columns, Recipe
from ray_diloco.protocol.delta_card import DeltaCard
from ray_diloco.tensors.delta_file import DeltaReader
from ray_diloco.tensors.dtypes import PIECE, STRETCH
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
    """Memory for what is taken at once: what a pass needs, whatever the number of deltas. A piece
    may be as long as a stretch, but for `columns`.
    """

    def __init__(self) -> None:
        self._sum = torch.empty(STRETCH)
        self._piece = torch.empty(STRETCH)
        self._rows = torch.empty(0, PIECE)

    def combined(
        self, deltas: Sequence[OpenDelta], recipe: Recipe, entry: Entry, start: int, stop: int
    ) -> torch.Tensor:
        """What a round's deltas come to by its recipe, as `mean` gives it."""
        if recipe.columns is not None:
            rows = self.columns(deltas, entry, start, stop)
            for each, row in zip(deltas, rows, strict=True):
                each.tally.add(row)
            return recipe.columns(rows).mul_(recipe.scale)
        if recipe.shares is None:
            return self.mean(deltas, entry, start, stop)
        total = self._sum[: stop - start].zero_()
        for each, share in zip(deltas, recipe.shares, strict=True):
            total.add_(self.share(each, share, entry, start, stop))
        return total

    def share(
        self, delta: OpenDelta, share: float, entry: Entry, start: int, stop: int
    ) -> torch.Tensor:
        """A piece of one delta times its share: float32, flat, valid until the next call."""
        piece = self._piece[: stop - start]
        delta.reader.read_piece(entry, start, piece)
        delta.tally.add(piece)
        return piece.mul_(share)

    def columns(
        self, deltas: Sequence[OpenDelta], entry: Entry, start: int, stop: int
    ) -> torch.Tensor:
        """A piece of every delta: float32 (deltas, numbers), valid until the next call. Counts
        nothing.
        """
        rows = self._some_rows(len(deltas), stop - start)
        for each, row in zip(deltas, rows, strict=True):
            each.reader.read_piece(entry, start, row)
        return rows

    def _some_rows(self, deltas: int, numbers: int) -> torch.Tensor:
        if len(self._rows) < deltas:
            self._rows = torch.empty(deltas, PIECE)
        return self._rows[:deltas, :numbers]

    def mean(
        self, deltas: Sequence[OpenDelta], entry: Entry, start: int, stop: int
    ) -> torch.Tensor:
        """The mean of numbers ``start`` to ``stop`` of an entry: float32, flat, valid until the
        next call. Counts each delta's piece in its tally.
        """
        total, piece = self._sum[: stop - start], self._piece[: stop - start]
        for place, each in enumerate(deltas):
            into = piece if place else total
            each.reader.read_piece(entry, start, into)
            each.tally.add(into)
            total.add_(into if place else 0.0)  # 0 + -0.0 is 0.0, as in `sum`
        return total.div_(len(deltas))

    def mean_value(
        self,
        deltas: Sequence[OpenDelta],
        bases: Sequence[torch.Tensor | None],
        entry: Entry,
        start: int,
        stop: int,
        columns: Columns | None = None,
    ) -> torch.Tensor | None:
        """The mean of the nodes' absolute values of statistics, or with ``columns`` what that makes
        of 3 or more: float32, flat, valid until the next call.

        ``bases``: per delta the whole entry of the global that it is measured from, None when
        unknown. Those are left out, and so is a variance that comes out negative, which only a
        peer's can: its later deltas are measured from its earlier ones. None when nothing is left.
        """
        total, piece = self._sum[: stop - start], self._piece[: stop - start]
        total.zero_()
        rows = self._some_rows(len(deltas) if columns is not None else 0, stop - start)
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
            if columns is not None:
                rows[counted].copy_(piece)
            counted += 1
        if columns is not None and counted >= 3:
            return columns(rows[:counted])
        return total.div_(counted) if counted else None


def is_variance(entry: Entry) -> bool:
    """Whether statistics cannot be negative, by the name that torch's layers give them."""
    return entry.statistics and entry.name.rpartition(".")[2] == "running_var"
