"""One repository of the embedded hub: its history, rebuilt from its journal at the start."""

import logging
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ray_diloco.errors import PermanentHubError
from ray_diloco.hub.embedded.journal import Journal, Record, read_journal
from ray_diloco.hub.history import Commit, History, changed_files, make_commit
from ray_diloco.hub.repository import FileEntry
from ray_diloco.protocol.clock import Clock

AUTHOR = "local"
MOST_COMPACTED = 64
"""Commits that a squash may leave (under other branches and tags) for the journal to be rewritten.
"""

logger = logging.getLogger(__name__)


class ServedRepository:
    """Changes are journaled before they show. Reading ``history`` needs no lock."""

    def __init__(self, repo_id: str, path: Path, clock: Clock) -> None:
        self.repo_id = repo_id
        self.path = path
        self.history = History()
        self.private = True
        self.created = ""
        self.lock = threading.Lock()
        self._clock = clock
        for record in read_journal(path) if path.exists() else ():
            self._apply(record)
        self._journal = Journal(path)

    @property
    def exists(self) -> bool:
        return bool(self.created)

    def create(self, *, private: bool) -> None:
        time = self._clock.utc()
        first = make_commit(
            parent=None, message="initial commit", author=AUTHOR, time=time, files={}
        )
        with self.lock:
            self._record({"kind": "create", "private": private, "time": time})
            self._record(_commit_record("main", first, additions=(), deletions=()))

    def commit(
        self,
        branch: str,
        *,
        additions: Sequence[FileEntry],
        deletions: Sequence[str],
        parent: str | None,
        message: str,
    ) -> Commit:
        """One atomic commit, durable when this returns; none when it changes nothing."""
        with self.lock:
            commit = self.history.propose(
                branch,
                additions=additions,
                deletions=deletions,
                parent=parent,
                message=message,
                author=AUTHOR,
                time=self._clock.utc(),
            )
            if commit.id not in self.history.commits:
                self._record(
                    _commit_record(branch, commit, additions=additions, deletions=deletions)
                )
            return commit

    def squash(self, branch: str, message: str) -> None:
        with self.lock:
            self.history.tip(branch)
            self._record(
                {"kind": "squash", "branch": branch, "message": message, "time": self._clock.utc()}
            )
            self._compact()

    def set_branch(self, name: str, commit: str) -> None:
        with self.lock:
            self._record({"kind": "branch", "name": name, "commit": commit})

    def delete_branch(self, name: str) -> None:
        with self.lock:
            self.history.tip(name)
            self._record({"kind": "branch", "name": name, "commit": None})

    def set_tag(self, name: str, commit: str | None) -> None:
        with self.lock:
            self._record({"kind": "tag", "name": name, "commit": commit})

    def set_private(self, private: bool) -> None:
        with self.lock:
            self._record({"kind": "visibility", "private": private})

    def close(self) -> None:
        self._journal.close()

    def _compact(self) -> None:
        """Drop what the squash made unreachable from the journal too, unless much is left."""
        history = self.history
        if len(history.commits) > MOST_COMPACTED:
            return
        state = {
            "kind": "state",
            "private": self.private,
            "created": self.created,
            "commits": [_whole(commit) for commit in history.commits.values()],
            "branches": history.branches,
            "tags": history.tags,
        }
        try:
            self._journal.replace([state])
        except OSError as error:
            logger.warning("%s stays as long as it is: %s", self.path, error)

    def _record(self, record: Record) -> None:
        self._journal.append(record)
        self._apply(record)

    def _apply(self, record: Record) -> None:
        match record["kind"]:
            case "create":
                self.private = record["private"]
                self.created = record["time"]
            case "visibility":
                self.private = record["private"]
            case "commit":
                self._apply_commit(record)
            case "squash":
                self._apply_squash(record)
            case "state":
                self._apply_state(record)
            case "branch":
                _set(self.history.branches, record)
                self.history.forget_unreachable()
            case "tag":
                _set(self.history.tags, record)
                self.history.forget_unreachable()
            case kind:
                raise PermanentHubError(f"{self.path}: a record of unknown kind {kind!r}")

    def _apply_state(self, record: Record) -> None:
        self.private, self.created = record["private"], record["created"]
        commits = [self._rebuilt(each, _entries(each["set"])) for each in record["commits"]]
        self.history = History(
            commits={commit.id: commit for commit in commits},
            branches=dict(record["branches"]),
            tags=dict(record["tags"]),
        )

    def _apply_commit(self, record: Record) -> None:
        branch = record["branch"]
        tip = self.history.branches.get(branch)
        files = self.history.commits[tip].files if tip else {}
        files = changed_files(files, _entries(record["set"]), record["gone"])
        self.history.accept(branch, self._rebuilt(record, files.values()))

    def _rebuilt(self, record: Record, files: Iterable[FileEntry]) -> Commit:
        """The commit of a record, with these files. PermanentHubError when it is another one."""
        commit = make_commit(
            parent=record["parent"],
            message=record["message"],
            author=record["author"],
            time=record["time"],
            files={entry.path: entry for entry in files},
        )
        if commit.id != record["id"]:
            raise PermanentHubError(f"{self.path}: commit {record['id']} cannot be rebuilt")
        return commit

    def _apply_squash(self, record: Record) -> None:
        squashed = make_commit(
            parent=None,
            message=record["message"],
            author=AUTHOR,
            time=record["time"],
            files=self.history.tip(record["branch"]).files,
        )
        self.history.accept(record["branch"], squashed)


def _set(names: dict[str, str], record: Record) -> None:
    if record["commit"] is None:
        names.pop(record["name"], None)
    else:
        names[record["name"]] = record["commit"]


def _commit_record(
    branch: str, commit: Commit, *, additions: Sequence[FileEntry], deletions: Sequence[str]
) -> dict[str, Any]:
    record = {"kind": "commit", "branch": branch, "gone": list(deletions)}
    return record | _described(commit, additions)


def _whole(commit: Commit) -> dict[str, Any]:
    """A commit with all its files."""
    return _described(commit, commit.files.values())


def _described(commit: Commit, files: Iterable[FileEntry]) -> dict[str, Any]:
    return {
        "id": commit.id,
        "parent": commit.parent,
        "message": commit.message,
        "author": commit.author,
        "time": commit.time,
        "set": [[e.path, e.size, e.blob_id, e.sha256] for e in files],
    }


def _entries(found: Iterable[Sequence[Any]]) -> list[FileEntry]:
    return [
        FileEntry(path=path, size=size, blob_id=blob_id, sha256=sha256)
        for path, size, blob_id, sha256 in found
    ]
