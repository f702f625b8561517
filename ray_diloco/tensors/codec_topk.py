"""Codecs that send only the largest numbers of each block, as bf16 with their place.

What is not sent stays in the difference to the baseline and goes out with a later delta (error
feedback, arXiv 1809.07599). Blocks instead of whole tensors: the file's layout is then known
beforehand, and selecting needs no more memory than a piece (SparseLoCo, arXiv 2508.15706).
"""

import math
from collections.abc import Iterator

import torch

from ray_diloco.tensors.codec_cast import narrowed
from ray_diloco.tensors.codec_seam import Codec, ReadPart, flat_part

BLOCK = 4096
"""Numbers among which the largest are chosen; divides a piece, and its places fit an int16."""

PLACES, VALUES = ":places", ":values"


def _topk(name: str, *, one_in: int) -> Codec:
    """``one_in``: of so many numbers one is kept, in a short block at least one."""

    def kept(numbers: int) -> int:
        return numbers // BLOCK * (BLOCK // one_in) + math.ceil(numbers % BLOCK / one_in)

    def encode(piece: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = [_largest(rows, kept(rows.shape[1])) for rows in _rows(piece)]
        places = torch.cat([torch.empty(0, dtype=torch.int16)] + [each for each, _ in found])
        values = torch.cat([torch.empty(0, dtype=torch.bfloat16)] + [each for _, each in found])
        return values, places

    def decode(read: ReadPart, into: torch.Tensor) -> None:
        count = kept(into.numel())
        places, values = torch.empty(count, dtype=torch.int16), torch.empty(count).bfloat16()
        read(PLACES, places)
        read(VALUES, values)
        into.zero_()
        start = 0
        for rows in _rows(into):
            stop = start + rows.shape[0] * kept(rows.shape[1])
            _fill(rows, places[start:stop], values[start:stop])
            start = stop

    parts = (flat_part(VALUES, torch.bfloat16, kept), flat_part(PLACES, torch.int16, kept))
    return Codec(name=name, parts=parts, encode=encode, decode=decode)


def _rows(piece: torch.Tensor) -> Iterator[torch.Tensor]:
    """Views: the whole blocks (blocks, BLOCK), then the short one (1, rest)."""
    whole = piece.numel() // BLOCK * BLOCK
    if whole:
        yield piece[:whole].view(-1, BLOCK)
    if whole < piece.numel():
        yield piece[whole:].view(1, -1)


def _largest(rows: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Places, rising within a row, and values; both flat. NaN counts as the largest."""
    places = rows.abs().topk(count, dim=1).indices.sort(dim=1).values
    values = rows.gather(1, places)
    return places.short().view(-1), narrowed(values, torch.bfloat16).view(-1)


def _fill(rows: torch.Tensor, places: torch.Tensor, values: torch.Tensor) -> None:
    """Places that do not rise or lie outside make a row not finite: such a file is refused."""
    places = places.view(rows.shape[0], -1).long()
    rising = (places.diff(dim=1) > 0).all(dim=1)
    sound = rising & (places[:, 0] >= 0) & (places[:, -1] < rows.shape[1])
    rows.scatter_(1, places.clamp(0, rows.shape[1] - 1), values.view_as(places).float())
    rows[~sound] = torch.nan


TOPK = _topk("topk", one_in=32)
"""1 in 32: one bit per number."""

TOPK_8 = _topk("topk_8", one_in=8)
"""1 in 8: four bits per number."""

TOPK_128 = _topk("topk_128", one_in=128)
"""1 in 128: a quarter of a bit per number."""
