"""Kept buffers for whole states, and copies into them that cost one memcpy."""

import torch

from ray_diloco.tensors.dtypes import PIECE, State, as_numbers, pieces, promoted
from ray_diloco.tensors.safetensors_reader import SafetensorsReader
from ray_diloco.tensors.schema import StateSchema


def allocate(
    schema: StateSchema, *, in_promoted_dtype: bool = False, pin_memory: bool = False
) -> State:
    """Buffers for a state on the CPU, each contiguous, tied as the schema says; not initialised.

    ``in_promoted_dtype``: half precision gets float32 buffers, for a baseline.
    """
    buffers: State = {}
    for entry in schema:
        if entry.tied_to is not None:
            buffers[entry.name] = buffers[entry.tied_to]
            continue
        dtype = promoted(entry.dtype) if in_promoted_dtype else entry.dtype
        buffers[entry.name] = torch.empty(entry.shape, dtype=dtype, pin_memory=pin_memory)
    return buffers


@torch.no_grad()
def capture(state: State, into: State, schema: StateSchema) -> None:
    """Copy a state into kept buffers, each storage once; dtypes are converted where they differ.

    Waits for a copy from an accelerator, so that the state may change right after.
    """
    names = [entry.name for entry in schema.distinct]
    sources = [state[name] for name in names]
    copy_tensors(sources, [into[name] for name in names])
    if any(source.is_cuda for source in sources):
        torch.cuda.synchronize()


def copy_tensors(sources: list[torch.Tensor], into: list[torch.Tensor]) -> None:
    """One call for many tensors; copies between devices are only started."""
    if sources:
        torch._foreach_copy_(into, sources, non_blocking=True)  # pyright: ignore[reportPrivateImportUsage]


@torch.no_grad()
def load(
    file: SafetensorsReader,
    into: State,
    schema: StateSchema,
    *,
    keep: frozenset[str] = frozenset(),
) -> None:
    """Read a global model into kept buffers in pieces; dtypes are converted where they differ.

    The file is one that `StateSchema.check` accepted (``schema.check(file.header.tensors)``);
    ``keep``: the names that it left out, whose buffers stay as they are.
    """
    for entry in schema.distinct:
        if entry.name in keep:
            continue
        numbers = as_numbers(into[entry.name])
        dtype = file.header.tensors[entry.name].dtype
        own = torch.float32 if dtype.is_complex else dtype
        buffer = None if own == numbers.dtype else torch.empty(PIECE, dtype=own)
        for start, stop in pieces(entry.numbers):
            if buffer is None:
                file.read_into(entry.name, numbers[start:stop], start=start)
            else:
                file.read_into(entry.name, buffer[: stop - start], start=start)
                numbers[start:stop].copy_(buffer[: stop - start])
