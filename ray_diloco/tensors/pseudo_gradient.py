"""The pseudo-gradient: ``float32(baseline) - float32(current)``, one tensor or piece at a time."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ray_diloco.tensors.dtypes import PIECE, State, as_numbers, pieces
from ray_diloco.tensors.schema import Entry, StateSchema


@dataclass(slots=True)
class Tally:
    """What one pass over a pseudo-gradient finds. ``square``: the sum of squares, in float64, of
    all that is not statistics; NaN or infinite when something is not finite.
    """

    square: float = 0.0
    finite: bool = True
    zero: bool = True

    @property
    def norm(self) -> float:
        """L2 norm over all names, each name of a tie counted."""
        return math.sqrt(self.square) if self.finite else math.nan

    def add(self, piece: torch.Tensor, *, statistics: bool = False) -> None:
        """Count a flat float32 piece.

        The float32 dot product is the fast way and sees everything that is not finite. Where it
        overflows (1e38 squared) or vanishes (1e-30 squared), float64 decides.
        """
        square = float(torch.dot(piece, piece))
        if not math.isfinite(square) or square < 1e-30:
            square = float(torch.linalg.vector_norm(piece, dtype=torch.float64)) ** 2
            if not math.isfinite(square):
                self.finite = False
        self.zero = self.zero and square == 0.0
        if not statistics:
            self.square += square


def difference(
    baseline: State, current: State, entry: Entry, start: int, into: torch.Tensor
) -> None:
    """Fill a flat float32 tensor with the pseudo-gradient of an entry from number ``start`` on.

    Both states have contiguous CPU tensors. float64 is rounded to float32 before the subtraction.
    """
    stop = start + into.numel()
    before = as_numbers(baseline[entry.name])[start:stop]
    now = as_numbers(current[entry.name])[start:stop]
    if before.dtype == torch.float32 and now.dtype != torch.float64:
        torch.sub(before, now, out=into)
    else:
        into.copy_(before)
        into.sub_(now.float())


@torch.no_grad()
def pseudo_gradient(
    baseline: State, current: State, schema: StateSchema
) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and pseudo-gradient of each floating entry, in new memory: float32 or complex64."""
    for entry in schema.floating:
        dtype = torch.complex64 if entry.dtype.is_complex else torch.float32
        whole = torch.empty(entry.shape, dtype=dtype)
        numbers = as_numbers(whole)
        for start, stop in pieces(entry.numbers):
            difference(baseline, current, entry, start, numbers[start:stop])
        yield entry.name, whole


@torch.no_grad()
def tally(baseline: State, current: State, schema: StateSchema) -> Tally:
    """Norm, finiteness and zeros of a pseudo-gradient that is not written."""
    found = Tally()
    buffer = torch.empty(PIECE)
    for entry in schema.floating:
        for start, stop in pieces(entry.numbers):
            part = buffer[: stop - start]
            difference(baseline, current, entry, start, part)
            found.add(part, statistics=entry.statistics)
    return found
