"""How a pseudo-gradient is written into a file: the table of codecs by name.

Accumulation is always float32. Statistics are absolute values, not steps, and small: they are
written in fp32 whatever the codec.
"""

from collections.abc import Mapping

import torch

from ray_diloco.errors import DeltaError, UsageError
from ray_diloco.tensors.codec_block import FP4_E3M0, INT4, INT8
from ray_diloco.tensors.codec_cast import BF16, FP16, FP32
from ray_diloco.tensors.codec_seam import Codec
from ray_diloco.tensors.codec_topk import TOPK, TOPK_8, TOPK_128
from ray_diloco.tensors.schema import Entry, StateSchema

CODECS: Mapping[str, Codec] = {
    codec.name: codec for codec in (FP32, BF16, FP16, INT8, INT4, FP4_E3M0, TOPK_8, TOPK, TOPK_128)
}


def codec_named(name: str, *, path: str) -> Codec:
    """The codec that the delta at ``path`` names. DeltaError when there is none of that name."""
    if name not in CODECS:
        raise DeltaError(
            path, f"unknown codec {name[:40]!r}; known are {', '.join(sorted(CODECS))}"
        )
    return CODECS[name]


def codec_for(entry: Entry, codec: Codec) -> Codec:
    """The codec that is used for one entry."""
    return FP32 if entry.statistics else codec


def delta_layout(
    schema: StateSchema, codec: Codec
) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """Keys, dtypes and shapes of a whole delta. UsageError when two entries want one key."""
    layout: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    for entry in schema.floating:
        described = codec_for(entry, codec).layout(entry)
        twice = layout.keys() & described.keys()
        if twice:
            raise UsageError(f"codec {codec.name} needs the key {min(twice)} for two entries")
        layout |= described
    return layout
