"""Codecs that write every number in another dtype: fp32 (without loss), bf16, fp16."""

import torch

from ray_diloco.tensors.codec_seam import Codec, Part, ReadPart, real_part

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


def narrowed(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The nearest in ``dtype``: what is finite stays so, at the edge of the range if need be."""
    edge = torch.finfo(dtype).max
    narrow = numbers.clamp(-edge, edge).to(dtype)
    beyond = numbers.isinf()
    return torch.where(beyond, numbers.to(dtype), narrow) if bool(beyond.any()) else narrow


def _cast(name: str, dtype: torch.dtype) -> Codec:
    def encode(piece: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (narrowed(piece, dtype),)

    def decode(read: ReadPart, into: torch.Tensor) -> None:
        narrow = torch.empty(into.numel(), dtype=dtype)
        read("", narrow)
        into.copy_(narrow)

    return Codec(name=name, parts=(real_part("", dtype),), encode=encode, decode=decode)


BF16 = _cast("bf16", torch.bfloat16)
"""8 bits of precision: an error of at most 2**-8 of each number."""

FP16 = _cast("fp16", torch.float16)
"""11 bits of precision above 6e-5, steps of 6e-8 below; at most 65504."""
