"""The only door between nodes: one branch of one model repository, narrowed to the protocol.

Implementations: `hub.client.HubRepository` (the Hub API over HTTP, embedded hub or huggingface.co)
and `hub.memory.MemoryRepository` (a dict, for tests). Calls block and raise only errors of
`ray_diloco.errors.HubError` (plus OSError for local disk, ContentError where it is named); none of
them retries a commit. All are safe to call from several threads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """A file at a commit.

    ``blob_id``: git id, changes when the bytes do. ``sha256``: of the bytes, None when not LFS.
    """

    path: str
    size: int
    blob_id: str
    sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHead:
    """What one HEAD tells: the commit that the branch is at now, and the ETag of the file there."""

    commit: str
    etag: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """A file to add or replace.

    ``source``: its bytes, or the path of a local file that must not change until the commit
    returned. ``sha256``: of the bytes when it is known already; saves a pass over the file.
    """

    path: str
    source: bytes | Path
    sha256: str | None = None


@dataclass(slots=True)
class Traffic:
    """What was exchanged with the repository so far: payload bytes, requests and commits."""

    bytes_up: int = 0
    bytes_down: int = 0
    requests: int = 0
    commits: int = 0


NO_TRAFFIC = Traffic()
"""Of who exchanges nothing."""


class Repository(Protocol):
    """One branch of one model repository."""

    @property
    def repo_id(self) -> str: ...

    @property
    def traffic(self) -> Traffic: ...

    def head_commit(self) -> str:
        """The commit that the branch is at."""
        ...

    def head(self, path: str) -> FileHead | None:
        """The file at the tip of the branch, in one request; None when it is not there."""
        ...

    def list_files(self, folder: str, *, commit: str) -> tuple[FileEntry, ...]:
        """All files below a folder at a commit, sorted by path; empty without such a folder."""
        ...

    def entry(self, path: str, *, commit: str) -> FileEntry | None:
        """One file at a commit; None when it is not there."""
        ...

    def last_commit(self, path: str, *, commit: str) -> str:
        """The commit, at or before ``commit``, that last changed the file.

        EntryMissing when the file is not there.
        """
        ...

    def read(self, path: str, *, commit: str, limit: int) -> bytes:
        """A small file. EntryMissing; ContentError when it has more than ``limit`` bytes."""
        ...

    def fetch(
        self,
        path: str,
        *,
        commit: str,
        destination: Path,
        size: int | None = None,
        sha256: str | None = None,
    ) -> str:
        """Stream a file to ``destination`` and give its sha256, computed on arrival.

        The destination is replaced atomically, its folder made. Bytes that do not match ``size``
        or ``sha256`` are a TransientHubError, and the destination stays as it was.
        """
        ...

    def stage(self, additions: Sequence[Addition]) -> None:
        """Upload the blobs now, so that the commit that names them is short. Idempotent."""
        ...

    def commit(
        self,
        message: str,
        *,
        additions: Sequence[Addition] = (),
        deletions: Sequence[str] = (),
        parent: str | None = None,
    ) -> str:
        """One atomic commit; blobs not staged yet are uploaded first. Gives the new commit.

        ParentConflict when ``parent`` is given and the branch has moved on. Deleting a path that
        is not there is no error.
        TransientHubError with outcome ``unknown`` when it may have landed.
        """
        ...

    def squash(self, message: str) -> str:
        """Replace the branch's history by one commit with the same files, and give it.

        Older commits are gone.
        """
        ...
