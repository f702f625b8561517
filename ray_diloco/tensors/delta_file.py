"""A node delta on disk: written from two states as a stream, and read in decoded pieces."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch

from ray_diloco.errors import DeltaError
from ray_diloco.tensors.codec import codec_for, codec_named, delta_layout
from ray_diloco.tensors.codec_cast import FP32
from ray_diloco.tensors.codec_seam import Codec
from ray_diloco.tensors.dtypes import PIECE, State, pieces
from ray_diloco.tensors.pseudo_gradient import Tally, difference
from ray_diloco.tensors.safetensors_header import Header
from ray_diloco.tensors.safetensors_reader import SafetensorsReader
from ray_diloco.tensors.safetensors_writer import SafetensorsWriter, Seal, WrittenFile
from ray_diloco.tensors.schema import Entry, StateSchema

SEAL_ROOM = 512
"""Bytes of a header for what a seal adds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenDelta:
    """A delta file. One that is ``zero`` or not ``finite`` must not be sent."""

    file: WrittenFile
    norm: float
    finite: bool
    zero: bool


@torch.no_grad()
def write_delta(
    path: Path,
    *,
    baseline: State,
    current: State,
    schema: StateSchema,
    header: Mapping[str, str],
    codec: str = "fp32",
    durable: bool = False,
    seal: Seal | None = None,
    factor: float = 1.0,
) -> WrittenDelta:
    """Write ``baseline - current`` with its card's header, whose ``sha256`` is filled in.
    ``seal``: see `SafetensorsWriter`. ``factor``: of a machine that sends something else.

    Both states are contiguous CPU tensors (kept buffers). Extra memory: a few pieces.
    """
    rule = codec_named(codec, path=path.name)
    planned = [(key, *described) for key, described in delta_layout(schema, rule).items()]
    found = Tally()
    buffer = torch.empty(PIECE)
    room = SEAL_ROOM if seal is not None else 0
    with SafetensorsWriter(path, planned, header, stamp=True, room=room, seal=seal) as writer:
        for entry in _in_file_order(writer, schema, rule):
            for start, stop in pieces(entry.numbers):
                part = buffer[: stop - start]
                difference(baseline, current, entry, start, part)
                if factor != 1:
                    part.mul_(factor)
                found.add(part, statistics=entry.statistics)
                _write_parts(writer, codec_for(entry, rule), entry, start, part)
        written = writer.finish(durable=durable)
    return WrittenDelta(file=written, norm=found.norm, finite=found.finite, zero=found.zero)


def _in_file_order(writer: SafetensorsWriter, schema: StateSchema, codec: Codec) -> list[Entry]:
    """The entries as the payload has them, so that the hash runs along."""
    places = {key: place for place, key in enumerate(writer.tensors)}

    def place(entry: Entry) -> int:
        return places[entry.name + codec_for(entry, codec).parts[0].suffix]

    return sorted(schema.floating, key=place)


def _write_parts(
    writer: SafetensorsWriter, codec: Codec, entry: Entry, start: int, piece: torch.Tensor
) -> None:
    for part, data in zip(codec.parts, codec.encode(piece), strict=True):
        writer.write(entry.name + part.suffix, data, start=part.count(start))


class DeltaReader:
    """An open delta file whose keys, dtypes and shapes are those of the schema; a context manager.

    ``path``: where it lies in the repository, for errors. SafetensorsError when the file is not
    well-formed, DeltaError when its layout is another. ``factor``: what the sender multiplied with;
    only the sender itself knows.
    """

    def __init__(
        self, file: Path, *, schema: StateSchema, codec: str, path: str, factor: float = 1.0
    ) -> None:
        self.path = path
        self._factor = factor
        self._codec = codec_named(codec, path=path)
        self._file = SafetensorsReader(file)
        try:
            check_layout(self._file.header, schema, self._codec, path=path)
        except DeltaError:
            self.close()
            raise

    def read_piece(self, entry: Entry, start: int, into: torch.Tensor) -> None:
        """Fill a flat float32 tensor with the decoded delta of an entry from number ``start`` on,
        which is where a piece starts.
        """
        self._decode(entry, start, into)
        if self._factor != 1:
            into.div_(self._factor)

    def _decode(self, entry: Entry, start: int, into: torch.Tensor) -> None:
        codec = codec_for(entry, self._codec)
        if codec is FP32:  # nearly all pieces: nothing to decode
            self._file.read_into(entry.name, into, start=start)
            return
        counts = {part.suffix: part.count for part in codec.parts}

        def read(suffix: str, numbers: torch.Tensor) -> None:
            self._file.read_into(entry.name + suffix, numbers, start=counts[suffix](start))

        codec.decode(read, into)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "DeltaReader":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def check_layout(header: Header, schema: StateSchema, codec: Codec, *, path: str) -> None:
    """Hold a delta's header against the schema: exactly the floating keys, their shapes, and the
    codec's dtypes. DeltaError names the first that differs.
    """
    expected = delta_layout(schema, codec)
    for key, (dtype, shape) in expected.items():
        found = header.tensors.get(key)
        if found is None:
            raise DeltaError(path, f"{key} is missing")
        if found.shape != shape:
            raise DeltaError(path, f"{key} has shape {list(found.shape)}, expected {list(shape)}")
        if found.dtype != dtype:
            raise DeltaError(path, f"{key} has dtype {found.dtype}, expected {dtype}")
    for key in header.tensors:
        if key not in expected:
            raise DeltaError(path, f"{key[:80]} is not a floating entry of the global")
