"""A safetensors file written as a stream: no more memory than the pieces handed in."""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch

from ray_diloco.tensors.dtypes import PIECE, State, as_numbers
from ray_diloco.tensors.safetensors_header import Header, TensorInfo, plan_header
from ray_diloco.tensors.safetensors_reader import BLOCK, SafetensorsReader, bytes_of, read_exactly

PAYLOAD_HASH = "sha256"
"""The metadata field that `stamp` fills with the hash of the payload."""

_PLACEHOLDER = "0" * 64

Seal = Callable[[Mapping[str, str]], dict[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A finished file. ``payload_sha256``: of all behind the header, None when not asked for."""

    path: Path
    size: int
    sha256: str
    payload_sha256: str | None = None


class SafetensorsWriter:
    """Writes beside ``path`` and takes its place when finished; also a context manager that leaves
    nothing behind without `finish`.

    ``stamp``: put the payload's hash into the metadata field ``sha256``. ``seal``: gives the
    metadata that are written, from all that are known then, a stamp included. ``room``: bytes left
    in the header for metadata that are known only at the end; a header that outgrows them costs one
    copy of the file. Pieces in the order of `tensors` are hashed as they come, others are read
    back once.
    """

    def __init__(
        self,
        path: Path,
        tensors: Iterable[tuple[str, torch.dtype, tuple[int, ...]]],
        metadata: Mapping[str, str],
        *,
        stamp: bool = False,
        room: int = 0,
        seal: Seal | None = None,
    ) -> None:
        self._path = path
        self._part = path.with_name(f".{path.name}.{os.getpid()}.part")
        self._stamp = stamp
        self._seal = seal
        self._metadata = dict(metadata) | ({PAYLOAD_HASH: _PLACEHOLDER} if stamp else {})
        self._planned = list(tensors)
        bare, _ = plan_header(self._planned, self._metadata)
        text, self._header = plan_header(
            self._planned, self._metadata, least_size=len(bare) + room if room else 0
        )
        self._final_header = not stamp and not room and seal is None
        self._hash = hashlib.sha256(text if self._final_header else b"")
        self._hashed = 0
        self._missing = self._header.payload_size
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._pwrite(memoryview(text), 0)

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """What is to be written, in the order of the payload."""
        return self._header.tensors

    def write(self, name: str, piece: torch.Tensor, *, start: int = 0) -> None:
        """Write a contiguous CPU piece of a tensor, from its number ``start`` on; each number once.

        Numbers are counted in the dtype of ``piece``: the tensor's own, or float32 for C64.
        """
        if not piece.numel():
            return
        info = self._header.tensors[name]
        begin = info.start + start * piece.element_size()
        data = bytes_of(piece)
        assert begin + len(data) <= info.stop, f"{name}: more numbers than planned"
        self._pwrite(data, self._header.payload_start + begin)
        self._missing -= len(data)
        if begin == self._hashed and (self._final_header or self._stamp):
            self._hash.update(data)
            self._hashed += len(data)

    def finish(
        self, metadata: Mapping[str, str] | None = None, *, durable: bool = False
    ) -> WrittenFile:
        """Complete the header, hash, and put the file in its place.

        ``metadata`` replaces what was given at the start (only with ``room``); ``durable`` waits
        until file and name are on the disk.
        """
        assert self._missing == 0, f"{self._missing} bytes of {self._path.name} were not written"
        assert metadata is None or not self._final_header, "metadata at the end need room"
        payload_hash = self._hash_payload() if self._stamp else None
        if not self._final_header:
            self._rewrite_header(self._metadata if metadata is None else metadata, payload_hash)
        size = os.fstat(self._fd).st_size
        digest = self._hash_payload() if self._final_header else self._hash_file(size)
        if durable:
            os.fsync(self._fd)
        self._part.replace(self._path)
        self._close()
        if durable:
            _sync_folder(self._path.parent)
        return WrittenFile(path=self._path, size=size, sha256=digest, payload_sha256=payload_hash)

    def __enter__(self) -> "SafetensorsWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._fd >= 0:
            self._close()
            self._part.unlink(missing_ok=True)

    def _close(self) -> None:
        os.close(self._fd)
        self._fd = -1

    def _pwrite(self, data: memoryview, position: int) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self._fd, data[done:], position + done)

    def _hash_payload(self) -> str:
        """The running hash, completed by what came out of order."""
        begin = self._header.payload_start
        self._hash_range(self._hash, begin + self._hashed, begin + self._header.payload_size)
        self._hashed = self._header.payload_size
        return self._hash.hexdigest()

    def _hash_file(self, size: int) -> str:
        digest = hashlib.sha256()
        self._hash_range(digest, 0, size)
        return digest.hexdigest()

    def _hash_range(self, digest: "hashlib._Hash", start: int, stop: int) -> None:
        block = memoryview(bytearray(BLOCK))
        for position in range(start, stop, BLOCK):
            part = block[: min(BLOCK, stop - position)]
            read_exactly(self._fd, part, position, self._part)
            digest.update(part)

    def _rewrite_header(self, metadata: Mapping[str, str], payload_hash: str | None) -> None:
        complete = dict(metadata) | ({PAYLOAD_HASH: payload_hash} if payload_hash else {})
        if self._seal is not None:
            complete = self._seal(complete)
        text, header = plan_header(self._planned, complete, least_size=self._header.payload_start)
        if header.payload_start > self._header.payload_start:
            self._move_payload(header)
        self._header = header
        self._pwrite(memoryview(text), 0)

    def _move_payload(self, header: Header) -> None:
        """Make room for a larger header, from the end backwards so that no byte is lost."""
        block = memoryview(bytearray(BLOCK))
        shift = header.payload_start - self._header.payload_start
        stop = self._header.payload_start + self._header.payload_size
        while stop > self._header.payload_start:
            start = max(self._header.payload_start, stop - BLOCK)
            part = block[: stop - start]
            read_exactly(self._fd, part, start, self._part)
            self._pwrite(part, start + shift)
            stop = start


def write_state(
    path: Path,
    state: State,
    metadata: Mapping[str, str],
    *,
    stamp: bool = False,
    durable: bool = False,
) -> WrittenFile:
    """Write a whole state, tied tensors under every name."""
    tensors = [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in state.items()]
    with SafetensorsWriter(path, tensors, metadata, stamp=stamp) as writer:
        for name in writer.tensors:
            whole = as_numbers(state[name].detach().cpu().contiguous())
            for start in range(0, whole.numel(), PIECE):
                writer.write(name, whole[start : start + PIECE], start=start)
        return writer.finish(durable=durable)


def copy_with_metadata(
    source: Path, destination: Path, metadata: Mapping[str, str], *, durable: bool = False
) -> WrittenFile:
    """The same tensors under other metadata, streamed."""
    with SafetensorsReader(source) as reader:
        infos = reader.header.tensors.values()
        planned = [(info.name, info.dtype, info.shape) for info in infos]
        with SafetensorsWriter(destination, planned, metadata) as writer:
            for name, info in writer.tensors.items():
                piece = torch.empty(PIECE, dtype=torch.uint8)
                for start in range(0, info.stop - info.start, PIECE):
                    part = piece[: min(PIECE, info.stop - info.start - start)]
                    reader.read_into(name, part, start=start)
                    writer.write(name, part, start=start)
            return writer.finish(durable=durable)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
