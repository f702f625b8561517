"""A repository in a dict, for tests and runs of one process: real commits, no network, no disk."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from ray_diloco.errors import ContentError, EntryMissing, PermanentHubError
from ray_diloco.hub.arrival import receive
from ray_diloco.hub.digest import (
    CHUNK_BYTES,
    etag_of,
    is_large,
    large_entry,
    regular_entry,
    sha256_of,
)
from ray_diloco.hub.history import Commit, History, files_below, make_commit
from ray_diloco.hub.repository import Addition, FileEntry, FileHead, Traffic
from ray_diloco.protocol.clock import Clock

AUTHOR = "local"


class MemoryStore:
    """A repository's blobs and history, shared by the handles on it. ``clock`` dates commits."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.lock = threading.RLock()
        self.clock = clock
        self.blobs: dict[str, bytes] = {}
        self.staged: set[str] = set()
        self.history = History()

    def time(self) -> str:
        return self.clock.utc() if self.clock else "1970-01-01T00:00:00.000000Z"

    def open_branch(self, branch: str) -> None:
        """Make the branch with an empty first commit, unless it is there."""
        with self.lock:
            if branch not in self.history.branches:
                first = make_commit(
                    parent=None, message="initial commit", author=AUTHOR, time=self.time(), files={}
                )
                self.history.accept(branch, first)

    def collect_garbage(self) -> None:
        """Drop the blobs that no commit names and that were not staged for one."""
        kept = {entry.blob_id for entry in self.history.entries()} | self.staged
        self.blobs = {blob_id: self.blobs[blob_id] for blob_id in kept if blob_id in self.blobs}


class MemoryRepository:
    """A handle on a repository in memory; `another` gives a second one, with traffic of its own."""

    def __init__(
        self,
        repo_id: str = "local/run",
        *,
        branch: str = "main",
        clock: Clock | None = None,
        store: MemoryStore | None = None,
    ) -> None:
        self._repo_id = repo_id
        self._branch = branch
        self._traffic = Traffic()
        self._store = store or MemoryStore(clock)
        self._store.open_branch(branch)

    def another(self) -> "MemoryRepository":
        """A second handle on the same repository, as another participant would have it."""
        return MemoryRepository(self._repo_id, branch=self._branch, store=self._store)

    @property
    def repo_id(self) -> str:
        return self._repo_id

    @property
    def traffic(self) -> Traffic:
        return self._traffic

    def head_commit(self) -> str:
        return self._tip().id

    def head(self, path: str) -> FileHead | None:
        tip = self._tip()
        entry = tip.files.get(path)
        if entry is None:
            return None
        return FileHead(commit=tip.id, etag=etag_of(entry), size=entry.size)

    def list_files(self, folder: str, *, commit: str) -> tuple[FileEntry, ...]:
        return files_below(self._at(commit).files, folder)

    def entry(self, path: str, *, commit: str) -> FileEntry | None:
        return self._at(commit).files.get(path)

    def last_commit(self, path: str, *, commit: str) -> str:
        with self._store.lock:
            self._traffic.requests += 1
            return self._store.history.last_change(path, commit).id

    def read(self, path: str, *, commit: str, limit: int) -> bytes:
        content = self._content(path, commit)
        if len(content) > limit:
            raise ContentError(f"{path}: {len(content)} bytes, at most {limit} are expected")
        self._count_down(len(content))
        return content

    def fetch(
        self,
        path: str,
        *,
        commit: str,
        destination: Path,
        size: int | None = None,
        sha256: str | None = None,
    ) -> str:
        content = self._content(path, commit)
        self._count_down(len(content))
        return receive(_chunks(content), destination, path=path, size=size, sha256=sha256)

    def stage(self, additions: Sequence[Addition]) -> None:
        for addition in additions:
            self._keep(addition)

    def commit(
        self,
        message: str,
        *,
        additions: Sequence[Addition] = (),
        deletions: Sequence[str] = (),
        parent: str | None = None,
    ) -> str:
        entries = [self._keep(addition) for addition in additions]
        store = self._store
        with store.lock:
            self._traffic.requests += 1
            commit = store.history.propose(
                self._branch,
                additions=entries,
                deletions=deletions,
                parent=parent,
                message=message,
                author=AUTHOR,
                time=store.time(),
            )
            if commit.id not in store.history.commits:
                store.history.accept(self._branch, commit)
                self._traffic.commits += 1
            store.staged.difference_update(entry.blob_id for entry in entries)
            return commit.id

    def squash(self, message: str) -> str:
        store = self._store
        with store.lock:
            self._traffic.requests += 1
            squashed = make_commit(
                parent=None,
                message=message,
                author=AUTHOR,
                time=store.time(),
                files=store.history.tip(self._branch).files,
            )
            store.history.accept(self._branch, squashed)
            store.collect_garbage()
            return squashed.id

    def _tip(self) -> Commit:
        with self._store.lock:
            self._traffic.requests += 1
            return self._store.history.tip(self._branch)

    def _at(self, commit: str) -> Commit:
        with self._store.lock:
            self._traffic.requests += 1
            return self._store.history.resolve(commit)

    def _content(self, path: str, commit: str) -> bytes:
        with self._store.lock:
            entry = self._at(commit).files.get(path)
            if entry is None:
                raise EntryMissing(f"{path} is not there at {commit[:12]}")
            return self._store.blobs[entry.blob_id]

    def _count_down(self, size: int) -> None:
        with self._store.lock:
            self._traffic.bytes_down += size

    def _keep(self, addition: Addition) -> FileEntry:
        """Store an addition's bytes, unless they are there, and give its entry."""
        source = addition.source
        content = source if isinstance(source, bytes) else source.read_bytes()
        entry = _entry_of(addition, content)
        with self._store.lock:
            if entry.blob_id not in self._store.blobs:
                self._store.blobs[entry.blob_id] = content
                self._traffic.bytes_up += len(content)
            self._store.staged.add(entry.blob_id)
        return entry


def _entry_of(addition: Addition, content: bytes) -> FileEntry:
    if not is_large(addition.path):
        return regular_entry(addition.path, content)
    sha256 = sha256_of(content)
    if addition.sha256 not in (None, sha256):
        raise PermanentHubError(f"{addition.path}: its sha256 is not the one that was announced")
    return large_entry(addition.path, sha256=sha256, size=len(content))


def _chunks(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), CHUNK_BYTES):
        yield content[start : start + CHUNK_BYTES]
