"""An append-only file of records: each is durable when `append` returns, a torn last one is cut.

A line is the crc32 of a record in 8 hex digits, a space, the record as JSON, a newline.
"""

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ray_diloco.errors import ContentError
from ray_diloco.hub.embedded.store import sync_folder

Record = Mapping[str, Any]


class Journal:
    """The records of one repository. Not locked: the owner serialises calls."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._file = path.open("ab", buffering=0)
        sync_folder(path.parent)

    def append(self, record: Record) -> None:
        """Write a record and wait until it is on disk. OSError leaves the journal as it was."""
        end = self._file.tell()
        try:
            _write_all(self._file.fileno(), encode(record))
            os.fsync(self._file.fileno())
        except OSError:
            os.ftruncate(self._file.fileno(), end)
            raise

    def replace(self, records: Iterable[Record]) -> None:
        """Put these records in the place of all that there are, at once or not at all. OSError
        leaves the journal as it was.
        """
        fresh = self._path.with_suffix(".fresh")
        with fresh.open("wb") as file:
            for record in records:
                file.write(encode(record))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        self._file.close()
        self._file = self._path.open("ab", buffering=0)
        sync_folder(self._path.parent)

    def close(self) -> None:
        self._file.close()


def read_journal(path: Path) -> list[Record]:
    """The whole records; a torn tail, which no `append` can have returned from, is cut off.

    ContentError when a record before the last one is damaged: that is no torn write.
    """
    content = path.read_bytes()
    records: list[Record] = []
    good = 0
    for line in content.splitlines(keepends=True):
        record = decode(line)
        if record is None:
            break
        records.append(record)
        good += len(line)
    if b"\n" in content[good:-1]:
        raise ContentError(f"{path}: damaged after record {len(records)}; restore it from a copy")
    if good < len(content):
        os.truncate(path, good)
    return records


def encode(record: Record) -> bytes:
    body = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def decode(line: bytes) -> Record | None:
    """The record of a line; None when the line is not whole."""
    body = line[9:-1]
    if not line.endswith(b"\n") or line[:9] != b"%08x " % zlib.crc32(body):
        return None
    return json.loads(body)


def _write_all(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
