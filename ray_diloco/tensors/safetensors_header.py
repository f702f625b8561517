"""The header of a safetensors file: parsed from hostile bytes with limits, and planned for a new
file.

Layout: 8 bytes little-endian length N, N bytes of JSON, then the payload, tensor behind tensor
without a gap.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ray_diloco.errors import SafetensorsError
from ray_diloco.tensors.dtypes import DTYPES, METADATA, dtype_name

MAX_HEADER_BYTES = 8 << 20
MAX_TENSORS = 50_000
_MAX_RANK = 64
_FIELDS = {"dtype", "shape", "data_offsets"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """One tensor of a file; ``start`` and ``stop`` are bytes within the payload."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a header says. ``tensors`` are in the order of the payload, which begins at byte
    ``payload_start`` of the file.
    """

    metadata: dict[str, str]
    tensors: dict[str, TensorInfo]
    payload_start: int
    payload_size: int


def header_size(first_bytes: bytes, *, file_size: int) -> int:
    """Bytes up to the payload, from the first 8. SafetensorsError when that cannot be."""
    if len(first_bytes) < 8 or file_size < 8:
        raise SafetensorsError(f"a file of {file_size} bytes has no safetensors header")
    length = int.from_bytes(first_bytes[:8], "little")
    if length > MAX_HEADER_BYTES:
        raise SafetensorsError(f"a header of {length} bytes, at most {MAX_HEADER_BYTES} are read")
    if 8 + length > file_size:
        raise SafetensorsError(f"a header of {length} bytes in a file of {file_size}")
    return 8 + length


def parse_header(data: bytes, *, file_size: int) -> Header:
    """Read a header from the beginning of a file that has ``file_size`` bytes in all.

    SafetensorsError, with the reason, for whatever is not a well-formed file: the cost is bounded
    by MAX_HEADER_BYTES and MAX_TENSORS.
    """
    payload_start = header_size(data, file_size=file_size)
    if len(data) < payload_start:
        raise SafetensorsError(f"{len(data)} bytes of a header of {payload_start}")
    fields = _parse_json(data[8:payload_start])
    metadata = _metadata(fields.pop(METADATA, {}))
    if len(fields) > MAX_TENSORS:
        raise SafetensorsError(f"{len(fields)} tensors, at most {MAX_TENSORS} are read")
    tensors = sorted(
        (_tensor_info(name, described) for name, described in fields.items()),
        key=lambda info: (info.start, info.stop),
    )
    payload_size = file_size - payload_start
    _check_contiguous(tensors, payload_size)
    return Header(
        metadata=metadata,
        tensors={info.name: info for info in tensors},
        payload_start=payload_start,
        payload_size=payload_size,
    )


def plan_header(
    tensors: Iterable[tuple[str, torch.dtype, tuple[int, ...]]],
    metadata: Mapping[str, str],
    *,
    least_size: int = 0,
) -> tuple[bytes, Header]:
    """The bytes and the meaning of a new file's header: wide dtypes first, so that all are aligned.

    ``least_size``: pad with spaces to so many bytes, to leave room for other metadata later.
    """
    ordered = sorted(tensors, key=lambda tensor: (-tensor[1].itemsize, tensor[0]))
    described: dict[str, Any] = {METADATA: dict(sorted(metadata.items()))} if metadata else {}
    infos: dict[str, TensorInfo] = {}
    start = 0
    for name, dtype, shape in ordered:
        stop = start + math.prod(shape) * dtype.itemsize
        described[name] = {
            "dtype": dtype_name(dtype),
            "shape": list(shape),
            "data_offsets": [start, stop],
        }
        infos[name] = TensorInfo(name=name, dtype=dtype, shape=shape, start=start, stop=stop)
        start = stop
    text = json.dumps(described, separators=(",", ":"), ensure_ascii=False).encode()
    size = max(8 + len(text), least_size)
    size += -size % 8
    return (size - 8).to_bytes(8, "little") + text.ljust(size - 8), Header(
        metadata=dict(metadata), tensors=infos, payload_start=size, payload_size=start
    )


def _parse_json(text: bytes) -> dict[str, Any]:
    if not text.startswith(b"{"):
        raise SafetensorsError("the header is not a JSON object")
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise SafetensorsError(f"the header is not JSON: {str(error)[:80]}") from None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key appears twice")
    return found


def _metadata(found: Any) -> dict[str, str]:
    if not isinstance(found, dict) or not all(_is_text(value) for value in found.values()):
        raise SafetensorsError("the metadata is not a table of strings")
    if not all(_is_text(key) for key in found):
        raise SafetensorsError("a name in the metadata is not text")
    return found


def _is_text(value: Any) -> bool:
    """Whether it is a string without lone surrogates, which could not be written again."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def _tensor_info(name: str, described: Any) -> TensorInfo:
    shown = name[:80]
    if not _is_text(name) or not isinstance(described, dict) or set(described) != _FIELDS:
        raise SafetensorsError(f"{shown!r} has not exactly dtype, shape and data_offsets")
    dtype = DTYPES.get(described["dtype"]) if isinstance(described["dtype"], str) else None
    if dtype is None:
        raise SafetensorsError(f"{shown!r} has an unknown dtype {str(described['dtype'])[:20]!r}")
    shape, offsets = described["shape"], described["data_offsets"]
    if not _are_counts(shape) or len(shape) > _MAX_RANK:
        raise SafetensorsError(f"{shown!r} has a shape that is not a list of counts")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise SafetensorsError(f"{shown!r} has offsets that are not two counts")
    start, stop = offsets
    if stop - start != math.prod(shape) * dtype.itemsize:
        raise SafetensorsError(f"{shown!r} has {stop - start} bytes, which do not fit its shape")
    return TensorInfo(name=name, dtype=dtype, shape=tuple(shape), start=start, stop=stop)


def _are_counts(found: Any) -> bool:
    return isinstance(found, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in found)


def _check_contiguous(tensors: list[TensorInfo], payload_size: int) -> None:
    position = 0
    for info in tensors:
        if info.start != position:
            raise SafetensorsError(
                f"{info.name[:80]!r} begins at payload byte {info.start}, expected {position}"
            )
        position = info.stop
    if position != payload_size:
        raise SafetensorsError(f"a payload of {payload_size} bytes, its tensors take {position}")
