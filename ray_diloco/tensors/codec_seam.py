"""What a codec is: a fixed layout in the file, and two functions over pieces.

A codec sees a tensor as flat pieces of `PIECE` real float32 numbers, each piece on its own, so that
writing and merging need no more memory than a piece. Its blocks divide a piece, so that only the
last block of a tensor may be short. A block with something that is not finite decodes to something
that is not finite, whatever else is lost: the receiver must see it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ray_diloco.tensors.schema import Entry

ReadPart = Callable[[str, torch.Tensor], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One tensor in the file, for one entry: its key is the entry's name with ``suffix``.

    ``shape`` and ``dtype`` are what the file must say; ``count(n)`` how many numbers of the part
    stand for ``n`` numbers of the entry, additive over whole pieces.
    """

    suffix: str
    dtype: Callable[[Entry], torch.dtype]
    shape: Callable[[Entry], tuple[int, ...]]
    count: Callable[[int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """``encode(piece)`` gives one flat tensor per part. ``decode(read, into)`` fills a flat float32
    tensor with what every receiver sees, where ``read(suffix, numbers)`` fills a tensor with a
    part's numbers.
    """

    name: str
    parts: tuple[Part, ...]
    encode: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]
    decode: Callable[[ReadPart, torch.Tensor], None]

    def layout(self, entry: Entry) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Keys, dtypes and shapes in the file for one entry."""
        return {
            entry.name + part.suffix: (part.dtype(entry), part.shape(entry)) for part in self.parts
        }


def real_part(suffix: str, dtype: torch.dtype) -> Part:
    """A number for each real number of the entry, in its shape; complex entries get a last
    dimension of two.
    """
    return Part(
        suffix=suffix,
        dtype=lambda _: dtype,
        shape=lambda entry: (*entry.shape, 2) if entry.dtype.is_complex else entry.shape,
        count=lambda numbers: numbers,
    )


def flat_part(suffix: str, dtype: torch.dtype, count: Callable[[int], int]) -> Part:
    """A flat tensor of ``count(numbers of the entry)``."""
    return Part(
        suffix=suffix,
        dtype=lambda _: dtype,
        shape=lambda entry: (count(entry.numbers),),
        count=count,
    )


def blocks_of(numbers: int, block: int) -> int:
    """How many blocks hold so many numbers."""
    return math.ceil(numbers / block)


def in_blocks(piece: torch.Tensor, block: int) -> torch.Tensor:
    """(blocks, block), the last one filled up with zeros; a view where nothing is to fill."""
    missing = -piece.numel() % block
    return (
        torch.nn.functional.pad(piece, (0, missing)).view(-1, block)
        if missing
        else piece.view(-1, block)
    )
