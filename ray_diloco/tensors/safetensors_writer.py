"""A safetensors file written as a stream: no more memory than the pieces handed in."""

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch

from ray_diloco.tensors.dtypes import PIECE, State, as_numbers
from ray_diloco.tensors.running_hash import RunningHash
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
    metadata that are written, from all that are known then, a stamp included; ``room``: bytes left
    in the header for what it adds. A header that outgrows them costs one copy of the file. What
    lies in the order of `tensors` is hashed while the rest is written. ``over``: a file that nobody
    needs, which is written over where it is there: its blocks need not be found and cleared.
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
        over: Path | None = None,
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
        self._final_header = not stamp and seal is None
        self._missing = self._header.payload_size
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = self._opened(over)
        self._pwrite(memoryview(text), 0)
        self._hash: RunningHash | None = None
        if self._final_header or stamp:
            begin = self._header.payload_start
            first = 0 if self._final_header else begin
            self._hash = RunningHash(self._fd, self._part, start=first)
            self._hash.written(first, begin)

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
        begin = info.start + start * piece.itemsize
        data = bytes_of(piece)
        assert begin + len(data) <= info.stop, f"{name}: more numbers than planned"
        self._pwrite(data, self._header.payload_start + begin)
        self._missing -= len(data)
        if self._hash is not None:
            place = self._header.payload_start + begin
            self._hash.written(place, place + len(data))

    def finish(self, *, durable: bool = False) -> WrittenFile:
        """Complete the header, hash, and put the file in its place. ``durable`` waits until file
        and name are on the disk.
        """
        assert self._missing == 0, f"{self._missing} bytes of {self._path.name} were not written"
        size = os.fstat(self._fd).st_size
        running = self._hash.finish(size) if self._hash is not None else None
        payload_hash = running if self._stamp else None
        if not self._final_header:
            self._rewrite_header(payload_hash)
            size = os.fstat(self._fd).st_size
            running = None
        digest = running or RunningHash(self._fd, self._part, start=0).finish(size)
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

    def _opened(self, over: Path | None) -> int:
        """A descriptor of the part, an old file of our own if there is one."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        if over is None or not over.exists() or over.stat().st_nlink > 1:
            return os.open(self._part, flags | os.O_TRUNC, 0o600)
        over.replace(self._part)
        handle = os.open(self._part, flags, 0o600)
        os.ftruncate(handle, self._header.payload_start + self._header.payload_size)
        return handle

    def _close(self) -> None:
        if self._hash is not None:
            self._hash.cancel()
        os.close(self._fd)
        self._fd = -1

    def _pwrite(self, data: memoryview, position: int) -> None:
        done = os.pwrite(self._fd, data, position)
        while done < len(data):
            done += os.pwrite(self._fd, data[done:], position + done)

    def _rewrite_header(self, payload_hash: str | None) -> None:
        complete = self._metadata | ({PAYLOAD_HASH: payload_hash} if payload_hash else {})
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
    source: Path,
    destination: Path,
    metadata: Mapping[str, str],
    *,
    leave_out: Collection[str] = (),
    durable: bool = False,
) -> WrittenFile:
    """The same tensors but for ``leave_out``, under other metadata, streamed; also in place."""
    with SafetensorsReader(source) as reader:
        infos = [info for info in reader.header.tensors.values() if info.name not in leave_out]
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
