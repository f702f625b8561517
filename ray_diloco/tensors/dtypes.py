"""Which dtypes a state may have, what they are called in a file, and what each is computed in."""

from collections.abc import Iterator

import torch

from ray_diloco.errors import UsageError

State = dict[str, torch.Tensor]
"""What ``model.state_dict()`` gives: names to tensors, tied tensors under every name."""

PIECE = 65536
"""Numbers in a piece: 256 KiB of float32, so that a piece stays in the cache between two passes."""

STRETCH = 4 * PIECE
"""Numbers that a round takes at once: what a call costs besides hardly counts then. In pieces, a
round of 8 deltas took 1.2 times as long; a node, whose threads each keep some, takes pieces.
"""

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""The names of the safetensors format; it has none for complex128."""

METADATA = "__metadata__"
"""What that format keeps for itself among the names of the tensors."""

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """The format's name of a dtype. UsageError when the format has none."""
    if dtype not in _NAMES:
        raise UsageError(f"{dtype} cannot be stored; expected one of {', '.join(DTYPES)}")
    return _NAMES[dtype]


def is_floating(dtype: torch.dtype) -> bool:
    """Whether entries of this dtype have a pseudo-gradient: floating or complex."""
    return dtype.is_floating_point or dtype.is_complex


def promoted(dtype: torch.dtype) -> torch.dtype:
    """What a baseline and the master's copy are held in: halves become float32, all else stays."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def as_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """A flat view of a contiguous tensor; complex numbers become pairs of real ones."""
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return real.view(-1)


def pieces(count: int, size: int = PIECE) -> Iterator[tuple[int, int]]:
    """Start and stop of each piece of ``count`` numbers."""
    for start in range(0, count, size):
        yield start, min(start + size, count)
