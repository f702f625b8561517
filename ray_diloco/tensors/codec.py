"""How a pseudo-gradient is written into a file: a table of codecs by name.

A codec sees a tensor as flat pieces of `PIECE` real float32 numbers, each piece on its own, so that
writing and merging need no more memory than a piece. Accumulation is always float32.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from ray_diloco.errors import DeltaError
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


FP32 = Codec(
    name="fp32",
    parts=(
        Part(
            suffix="",
            dtype=lambda entry: torch.complex64 if entry.dtype.is_complex else torch.float32,
            shape=lambda entry: entry.shape,
            count=lambda numbers: numbers,
        ),
    ),
    encode=lambda piece: (piece,),
    decode=lambda read, into: read("", into),
)

CODECS: Mapping[str, Codec] = {FP32.name: FP32}


def codec_named(name: str, *, path: str) -> Codec:
    """The codec that the delta at ``path`` names. DeltaError when there is none of that name."""
    if name not in CODECS:
        raise DeltaError(
            path, f"unknown codec {name[:40]!r}; known are {', '.join(sorted(CODECS))}"
        )
    return CODECS[name]
