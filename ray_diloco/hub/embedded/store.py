"""Blobs on disk, named by their content: a blob is whole and durable, or not there."""

import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol


class _Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


class BlobStore:
    """A folder of blobs. Large ones are named by sha256, small ones by their git id (`etag_of`)."""

    def __init__(self, folder: Path, *, now: Callable[[], float] = time.time) -> None:
        self._blobs = folder / "blobs"
        self._arriving = folder / "arriving"
        self._now = now
        for place in (self._blobs, self._arriving):
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
        for abandoned in self._arriving.iterdir():
            abandoned.unlink()

    def path(self, name: str) -> Path:
        """Where the blob of this name lies, if it is there."""
        return self._blobs / name[:2] / name

    def size(self, name: str) -> int | None:
        """Bytes of a blob; None when it is not there."""
        try:
            return self.path(name).stat().st_size
        except FileNotFoundError:
            return None

    def touch(self, name: str) -> None:
        """Make a blob young again: somebody is about to commit it."""
        moment = self._now()
        with contextlib.suppress(FileNotFoundError):
            os.utime(self.path(name), (moment, moment))

    def put(self, name: str, content: bytes) -> None:
        """Keep a small blob."""
        if self.size(name) is not None:
            self.touch(name)
            return
        with self.arriving() as upload:
            upload.write(content)
            upload.keep(name)

    @contextlib.contextmanager
    def arriving(self) -> Iterator["Arrival"]:
        """A blob on its way in; gone when the block ends, unless it was kept."""
        handle, name = tempfile.mkstemp(dir=self._arriving)
        with os.fdopen(handle, "w+b") as file:
            try:
                yield Arrival(file, Path(name), self)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    Path(name).unlink()

    def part(self, upload: str, number: int) -> Path:
        """Where a part of a multipart upload is kept until the upload is complete."""
        return self._arriving / f"{upload}.{number}"

    def collect_garbage(self, named: Container[str], *, spared_seconds: float) -> int:
        """Drop the blobs that are not named and older than that; gives how many went."""
        oldest = self._now() - spared_seconds
        dropped = 0
        for blob in self._blobs.glob("*/*"):
            if blob.name not in named and blob.stat().st_mtime < oldest:
                blob.unlink()
                dropped += 1
        return dropped


class Arrival:
    """A blob being written: hashed as it comes, on disk before it gets its name."""

    def __init__(self, file: BinaryIO, path: Path, store: BlobStore) -> None:
        self._file = file
        self._path = path
        self._store = store
        self._digest: _Digest = hashlib.sha256()
        self.size = 0

    def write(self, chunk: bytes) -> None:
        self._digest.update(chunk)
        self.size += len(chunk)
        self._file.write(chunk)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def keep(self, name: str) -> None:
        """Give the blob its name, durably."""
        self.keep_at(self._store.path(name))

    def keep_at(self, target: Path) -> None:
        """Put what was written at a path of the same disk, durably."""
        self._file.flush()
        os.fsync(self._file.fileno())
        target.parent.mkdir(exist_ok=True, mode=0o700)
        self._path.replace(target)
        sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
