"""Commits, branches and tags of one repository, without their blobs. Pure: time is handed in."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ray_diloco.errors import EntryMissing, ParentConflict, RevisionMissing
from ray_diloco.hub.repository import FileEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One state of all files. ``time``: ISO 8601 UTC."""

    id: str
    parent: str | None
    message: str
    author: str
    time: str
    files: Mapping[str, FileEntry]


def make_commit(
    *, parent: str | None, message: str, author: str, time: str, files: Mapping[str, FileEntry]
) -> Commit:
    """A commit whose id is a sha1 of everything in it, so that equal histories have equal ids."""
    tree = sorted((entry.path, entry.blob_id, entry.size) for entry in files.values())
    content = json.dumps([parent, message, author, time, tree], separators=(",", ":"))
    return Commit(
        id=hashlib.sha1(content.encode()).hexdigest(),
        parent=parent,
        message=message,
        author=author,
        time=time,
        files=files,
    )


def changed_files(
    files: Mapping[str, FileEntry], additions: Iterable[FileEntry], deletions: Iterable[str]
) -> dict[str, FileEntry]:
    """The files after a commit: deletions, then additions. One ending in "/" deletes a folder."""
    gone = tuple(deletions)
    folders = tuple(path for path in gone if path.endswith("/"))
    names = frozenset(gone)
    changed = {
        path: entry
        for path, entry in files.items()
        if path not in names and not (folders and path.startswith(folders))
    }
    changed.update((entry.path, entry) for entry in additions)
    return changed


@dataclass(slots=True)
class History:
    """All commits that a branch or a tag can reach. Not locked: the owner serialises calls."""

    commits: dict[str, Commit] = field(default_factory=dict[str, Commit])
    branches: dict[str, str] = field(default_factory=dict[str, str])
    tags: dict[str, str] = field(default_factory=dict[str, str])

    def resolve(self, revision: str) -> Commit:
        """The commit that a branch, a tag or a commit id names. RevisionMissing."""
        name = self.branches.get(revision) or self.tags.get(revision) or revision
        try:
            return self.commits[name]
        except KeyError:
            raise RevisionMissing(f"there is no revision {revision!r}") from None

    def tip(self, branch: str) -> Commit:
        """The commit that a branch is at. RevisionMissing when there is no such branch."""
        if branch not in self.branches:
            raise RevisionMissing(f"there is no branch {branch!r}")
        return self.commits[self.branches[branch]]

    def propose(
        self,
        branch: str,
        *,
        additions: Sequence[FileEntry],
        deletions: Sequence[str],
        parent: str | None,
        message: str,
        author: str,
        time: str,
    ) -> Commit:
        """The commit that the changes would make; the tip when they change nothing.

        ParentConflict when the branch is not at ``parent``.
        """
        tip = self.tip(branch)
        if parent is not None and parent != tip.id:
            raise ParentConflict(f"{branch} is at {tip.id[:12]}, no longer at {parent[:12]}")
        files = changed_files(tip.files, additions, deletions)
        if files == tip.files:
            return tip
        return make_commit(parent=tip.id, message=message, author=author, time=time, files=files)

    def accept(self, branch: str, commit: Commit) -> None:
        """Move the branch to a commit; commits that nothing reaches any more are forgotten."""
        self.commits[commit.id] = commit
        before = self.branches.get(branch)
        self.branches[branch] = commit.id
        if before is not None and commit.parent != before:
            self.forget_unreachable()

    def ancestors(self, revision: str) -> Iterator[Commit]:
        """The commit that the revision names and its ancestors, newest first."""
        following: Commit | None = self.resolve(revision)
        while following is not None:
            yield following
            following = self.commits.get(following.parent) if following.parent else None

    def last_change(self, path: str, revision: str) -> Commit:
        """The newest commit at or before the revision that changed the file. EntryMissing."""
        lineage = self.ancestors(revision)
        changed = next(lineage)
        if path not in changed.files:
            raise EntryMissing(f"{path} is not there at {changed.id[:12]}")
        for older in lineage:
            if older.files.get(path) != changed.files[path]:
                break
            changed = older
        return changed

    def forget_unreachable(self) -> None:
        """Drop the commits that no branch and no tag reaches."""
        reachable: dict[str, Commit] = {}
        for name in (*self.branches.values(), *self.tags.values()):
            for commit in self.ancestors(name):
                if commit.id in reachable:
                    break
                reachable[commit.id] = commit
        self.commits = reachable

    def entries(self) -> Iterator[FileEntry]:
        """Every file of every commit; one that several commits share comes several times."""
        for commit in self.commits.values():
            yield from commit.files.values()


def files_below(files: Mapping[str, FileEntry], folder: str) -> tuple[FileEntry, ...]:
    """The files below a folder ("" for all), sorted by path."""
    prefix = folder.strip("/") + "/" if folder.strip("/") else ""
    return tuple(files[path] for path in sorted(files) if path.startswith(prefix))
