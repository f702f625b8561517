"""All repositories of the embedded hub, and the store that their blobs share."""

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from ray_diloco.errors import PermanentHubError
from ray_diloco.hub.digest import etag_of
from ray_diloco.hub.embedded.served import ServedRepository
from ray_diloco.hub.embedded.store import BlobStore
from ray_diloco.protocol.clock import Clock

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")


class Catalog:
    """Opens every journal below ``folder``; repositories that a crash left half-made are made anew.

    ``spared_seconds``: an unnamed blob this young may be about to be committed.
    """

    def __init__(self, folder: Path, *, clock: Clock, spared_seconds: float) -> None:
        self.store = BlobStore(folder, now=time.time)
        self._folder = folder / "repositories"
        self._clock = clock
        self._spared_seconds = spared_seconds
        self._lock = threading.Lock()
        self._repositories: dict[str, ServedRepository] = {}
        for journal in sorted(self._folder.glob("*/*.journal")):
            repo_id = f"{journal.parent.name}/{journal.stem}"
            repository = ServedRepository(repo_id, journal, clock)
            if "main" in repository.history.branches:
                self._repositories[repo_id] = repository
            else:
                repository.close()
                journal.unlink()

    def find(self, repo_id: str) -> ServedRepository | None:
        return self._repositories.get(repo_id)

    def create(self, repo_id: str, *, private: bool) -> tuple[ServedRepository, bool]:
        """The repository, and whether it is new. PermanentHubError for a name that is unsafe."""
        owner, _, name = repo_id.partition("/")
        if not (NAME.fullmatch(owner) and NAME.fullmatch(name)):
            raise PermanentHubError(f"{repo_id!r} is no name of a repository")
        with self._lock:
            if repo_id in self._repositories:
                return self._repositories[repo_id], False
            path = self._folder / owner / f"{name}.journal"
            repository = ServedRepository(repo_id, path, self._clock)
            repository.create(private=private)
            self._repositories[repo_id] = repository
            return repository, True

    def delete(self, repo_id: str) -> bool:
        """Forget a repository; gives whether it was there."""
        with self._lock:
            repository = self._repositories.pop(repo_id, None)
            if repository is not None:
                repository.close()
                repository.path.unlink()
        self.collect_garbage()
        return repository is not None

    def collect_garbage(self) -> int:
        """Drop old blobs that no commit names; gives how many."""
        named = set(self._named())
        return self.store.collect_garbage(named, spared_seconds=self._spared_seconds)

    def close(self) -> None:
        for repository in self._repositories.values():
            repository.close()

    def _named(self) -> Iterator[str]:
        for repository in list(self._repositories.values()):
            for entry in repository.history.entries():
                yield etag_of(entry)
