"""Single tensors of a safetensors file, read in pieces into memory that the caller keeps.

Reads are `pread`, not a memory map: measured equally fast, and a file that becomes shorter is an
error instead of a SIGBUS that kills the process.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import torch

from ray_diloco.errors import SafetensorsError
from ray_diloco.tensors.dtypes import as_numbers
from ray_diloco.tensors.safetensors_header import Header, header_size, parse_header

BLOCK = 1 << 18


def read_header(path: Path) -> Header:
    """The header of a file, without its tensors. SafetensorsError when it is not well-formed."""
    with SafetensorsReader(path) as reader:
        return reader.header


class SafetensorsReader:
    """An open file; also a context manager. Holds a file descriptor and the header, no tensor."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(self._fd).st_size
            length = header_size(os.pread(self._fd, 8, 0), file_size=size)
            self.header = parse_header(os.pread(self._fd, length, 0), file_size=size)
        except BaseException:
            self.close()
            raise

    def read_into(self, name: str, into: torch.Tensor, *, start: int = 0) -> None:
        """Fill a contiguous CPU tensor with the bytes of a tensor from its number ``start`` on.

        Numbers are counted in the dtype of ``into``, which is the file's own, or float32 for the
        real and imaginary parts of C64. SafetensorsError when the file has become shorter.
        """
        header, size = self.header, into.nbytes
        info = header.tensors[name]
        begin = info.start + start * into.itemsize
        if begin + size > info.stop:
            raise IndexError(f"{name} ends before number {start + into.numel()}")
        if size:
            read_exactly(self._fd, bytes_of(into), header.payload_start + begin, self.path)

    def read(self, name: str) -> torch.Tensor:
        """A whole tensor, in new memory."""
        info = self.header.tensors[name]
        tensor = torch.empty(info.shape, dtype=info.dtype)
        self.read_into(name, tensor)
        return tensor

    def payload(self) -> Iterator[memoryview]:
        """The payload in blocks, each overwritten by the next."""
        block = memoryview(bytearray(BLOCK))
        end = self.header.payload_start + self.header.payload_size
        for position in range(self.header.payload_start, end, BLOCK):
            part = block[: min(BLOCK, end - position)]
            read_exactly(self._fd, part, position, self.path)
            yield part

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> "SafetensorsReader":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor."""
    # nearly all pieces are of this kind, and each call on a tensor costs as much as a page of it
    if tensor.dtype is torch.float32 and tensor.numel() and not tensor.requires_grad:
        return tensor.numpy().data.cast("B")
    return as_numbers(tensor.detach()).view(torch.uint8).numpy().data


def read_exactly(fd: int, into: memoryview, position: int, path: Path) -> None:
    """Fill a buffer from a place in a file. SafetensorsError when the file ends before."""
    done = os.preadv(fd, [into], position)
    while done < len(into):
        count = os.preadv(fd, [into[done:]], position + done)
        if count == 0:
            raise SafetensorsError(
                f"{path.name} ends at byte {position + done}, before its tensors"
            )
        done += count
