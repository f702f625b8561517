"""Codecs that write small levels and, for each block of `BLOCK` numbers, its largest magnitude:
int8, int4, fp4_e3m0 (the 4-bit format of Streaming DiLoCo, arXiv 2501.18512).

A level is a fraction of the block's largest magnitude, rounded to the nearest: the error is at most
half a step between the levels around a number. 8.25 and 4.25 bits per number.
"""

from collections.abc import Callable

import torch

from ray_diloco.tensors.codec_seam import (
    Codec,
    Part,
    ReadPart,
    blocks_of,
    flat_part,
    in_blocks,
    real_part,
)

BLOCK = 128
"""Numbers that share a scale."""

SCALE, LEVELS, PACKED = ":scale", ":int8", ":packed"

E3M0 = torch.tensor([0.0, *(2.0**power for power in range(-6, 1))])
"""What the seven non-zero exponents stand for, as fractions; the eighth code is zero."""

_E3M0_EDGES = (E3M0[1:] + E3M0[:-1]) / 2
_E3M0_TABLE = torch.cat((E3M0, -E3M0))


def fractions_of(piece: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(blocks, BLOCK) numbers from -1 to 1, and (blocks,) largest magnitudes. Not finite: the
    fraction is 0, the magnitude tells.
    """
    blocks = in_blocks(piece, BLOCK)
    largest = blocks.abs().amax(dim=1)
    fractions = (blocks / largest[:, None]).nan_to_num_(0.0, 0.0, 0.0)
    return fractions, largest


def scale_blocks(fractions: torch.Tensor, read: ReadPart, into: torch.Tensor) -> None:
    """``into = fractions * magnitude of their block``; ``fractions``: flat, whole blocks."""
    largest = torch.empty(blocks_of(into.numel(), BLOCK))
    read(SCALE, largest)
    numbers = fractions.view(-1, BLOCK) * largest[:, None]
    into.copy_(numbers.view(-1)[: into.numel()])


def _int8() -> Codec:
    def encode(piece: torch.Tensor) -> tuple[torch.Tensor, ...]:
        fractions, largest = fractions_of(piece)
        levels = fractions.mul_(127).round_().to(torch.int8)
        return largest, levels.view(-1)[: piece.numel()]

    def decode(read: ReadPart, into: torch.Tensor) -> None:
        levels = torch.zeros(blocks_of(into.numel(), BLOCK) * BLOCK, dtype=torch.int8)
        read(LEVELS, levels[: into.numel()])
        scale_blocks(levels.float().div_(127), read, into)

    parts = (_scales(), real_part(LEVELS, torch.int8))
    return Codec(name="int8", parts=parts, encode=encode, decode=decode)


def _four_bits(
    name: str,
    to_codes: Callable[[torch.Tensor], torch.Tensor],
    to_fractions: Callable[[torch.Tensor], torch.Tensor],
) -> Codec:
    """``to_codes``: fractions to uint8 below 16; ``to_fractions``: int64 codes back. Two numbers
    share a byte, the first in the lower half.
    """

    def encode(piece: torch.Tensor) -> tuple[torch.Tensor, ...]:
        fractions, largest = fractions_of(piece)
        codes = to_codes(fractions).view(-1, 2)
        packed = codes[:, 0] | (codes[:, 1] << 4)
        return largest, packed[: (piece.numel() + 1) // 2].contiguous()

    def decode(read: ReadPart, into: torch.Tensor) -> None:
        packed = torch.zeros(blocks_of(into.numel(), BLOCK) * BLOCK // 2, dtype=torch.uint8)
        read(PACKED, packed[: (into.numel() + 1) // 2])
        codes = torch.stack((packed & 15, packed >> 4), dim=1).view(-1)
        scale_blocks(to_fractions(codes.int()), read, into)

    parts = (_scales(), flat_part(PACKED, torch.uint8, lambda numbers: (numbers + 1) // 2))
    return Codec(name=name, parts=parts, encode=encode, decode=decode)


def _scales() -> Part:
    return flat_part(SCALE, torch.float32, lambda numbers: blocks_of(numbers, BLOCK))


def _int4_codes(fractions: torch.Tensor) -> torch.Tensor:
    return fractions.mul_(7).round_().add_(8).to(torch.uint8)


def _e3m0_codes(fractions: torch.Tensor) -> torch.Tensor:
    codes = torch.bucketize(fractions.abs(), _E3M0_EDGES, out_int32=True)
    return (codes + 8 * (fractions < 0)).to(torch.uint8)


INT8 = _int8()
"""255 levels, 1/127 apart."""

INT4 = _four_bits("int4", _int4_codes, lambda codes: (codes - 8).float().div_(7))
"""15 levels, 1/7 apart."""

FP4_E3M0 = _four_bits("fp4_e3m0", _e3m0_codes, lambda codes: _E3M0_TABLE[codes])
"""Sign and exponent: 0 and the powers of two from 1/64 to 1."""
