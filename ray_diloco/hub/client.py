"""A repository behind the Hub's API: the embedded hub, huggingface.co, or what speaks like them.

Everything goes through the unmodified `huggingface_hub` client, in this thread, with these turns:
- Reads name a commit, never a branch, and bypass the client's cache, which grows for ever.
- Large files go over plain HTTP (LFS), not xet: xet's native code has connections of its own that
  no timeout of ours reaches, and float noise has no repeated chunks to save.
- Which file is large follows from its name, so that a commit with staged blobs is one request.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import urljoin, urlsplit

import httpx2
from huggingface_hub import (
    CommitOperationDelete,
    get_session,
    hf_hub_url,
)
from huggingface_hub.hf_api import RepoFile

from ray_diloco.errors import (
    ContentError,
    EntryMissing,
    TransientHubError,
)
from ray_diloco.hub.arrival import receive
from ray_diloco.hub.blobs import Blobs, operation_of
from ray_diloco.hub.digest import git_blob_id
from ray_diloco.hub.door import HubDoor
from ray_diloco.hub.repository import Addition, FileEntry, FileHead, Traffic
from ray_diloco.hub.secret import Secret
from ray_diloco.hub.transport import Timeouts

T = TypeVar("T")
MOST_HOPS = 3
GIT_ID = re.compile(r"[0-9a-f]{40}")
"""What the ETag of a file that is not large looks like: the name that git gives its bytes."""


class HubRepository:
    """One branch of one model repository behind the Hub's API."""

    def __init__(
        self,
        *,
        endpoint: str,
        token: Secret | None,
        repo_id: str,
        branch: str = "main",
        timeouts: Timeouts | None = None,
    ) -> None:
        self._door = HubDoor(endpoint=endpoint, token=token, timeouts=timeouts)
        self._repo_id = repo_id
        self._branch = branch
        self._blobs = Blobs(self._door, repo_id=repo_id, branch=branch)
        self._tip = ""

    @property
    def repo_id(self) -> str:
        return self._repo_id

    @property
    def traffic(self) -> Traffic:
        return self._door.traffic

    def head_commit(self) -> str:
        api = self._door.api
        info = self._door.ask(lambda: api.model_info(self._repo_id, revision=self._branch))
        self._tip = cast(str, info.sha)
        return self._tip

    def head(self, path: str) -> FileHead | None:
        try:
            return self._door.ask(lambda: self._head(self._url(path, self._branch)))
        except EntryMissing:
            return None

    def list_files(self, folder: str, *, commit: str) -> tuple[FileEntry, ...]:
        api = self._door.api

        def walk() -> list[Any]:
            return list(
                api.list_repo_tree(
                    self._repo_id, folder.strip("/") or None, recursive=True, revision=commit
                )
            )

        try:
            found = self._door.ask(walk)
        except EntryMissing:
            return ()
        files = (_entry(file) for file in found if isinstance(file, RepoFile))
        return tuple(sorted(files, key=lambda entry: entry.path))

    def entry(self, path: str, *, commit: str) -> FileEntry | None:
        found = self._paths_info([path], commit)
        return _entry(found[0]) if found else None

    def last_commit(self, path: str, *, commit: str) -> str:
        found = self._paths_info([path], commit, expand=True)
        if not found or found[0].last_commit is None:
            raise EntryMissing(f"{path} is not there at {commit[:12]}")
        return found[0].last_commit.oid

    def read(self, path: str, *, commit: str, limit: int) -> bytes:
        def collect(chunks: Iterable[bytes], etag: str) -> bytes:
            content = b""
            for chunk in chunks:
                content += chunk
                if len(content) > limit:
                    raise ContentError(f"{path}: more than {limit} bytes, which it should not have")
            if GIT_ID.fullmatch(etag) and git_blob_id(content) != etag:
                raise TransientHubError(f"{path}: its bytes were damaged on the way", "refused")
            return content

        return self._stream(path, commit, collect, seconds=self._door.timeouts.total)

    def fetch(
        self,
        path: str,
        *,
        commit: str,
        destination: Path,
        size: int | None = None,
        sha256: str | None = None,
    ) -> str:
        def write(chunks: Iterable[bytes], _etag: str) -> str:
            return receive(chunks, destination, path=path, size=size, sha256=sha256)

        return self._stream(path, commit, write, seconds=self._door.timeouts.transfer)

    def stage(self, additions: Sequence[Addition]) -> None:
        self._blobs.stage(additions)

    def commit(
        self,
        message: str,
        *,
        additions: Sequence[Addition] = (),
        deletions: Sequence[str] = (),
        parent: str | None = None,
    ) -> str:
        self.stage(additions)
        added = {addition.path for addition in additions}
        removed = [path for path in deletions if path not in added]
        try:
            return self._commit(message, additions, removed, parent)
        except EntryMissing:
            there = {file.path for file in self._paths_info(removed, parent or self._branch)}
            if there.issuperset(removed):
                raise
            return self._commit(message, additions, sorted(there), parent)

    def squash(self, message: str) -> str:
        api = self._door.api
        self._door.ask(
            lambda: api.super_squash_history(
                self._repo_id, branch=self._branch, commit_message=message
            )
        )
        return self.head_commit()

    def _commit(
        self,
        message: str,
        additions: Sequence[Addition],
        deletions: Sequence[str],
        parent: str | None,
    ) -> str:
        """Send the commit once, as one request: its blobs are staged."""
        adding = [operation_of(addition) for addition in additions]
        for operation in adding:
            operation._is_uploaded = operation._upload_mode == "lfs"
        removing = [CommitOperationDelete(path, is_folder=False) for path in deletions]
        if not adding and not removing:
            return self.head_commit()
        api = self._door.api
        try:
            info = self._door.ask(
                lambda: api.create_commit(
                    self._repo_id,
                    [*removing, *adding],
                    commit_message=message,
                    revision=self._branch,
                    parent_commit=parent,
                )
            )
        except TransientHubError:
            self._blobs.forget(adding)
            raise
        small = sum(op.upload_info.size for op in adding if op._upload_mode == "regular")
        self._door.count(up=small, commits=int(info.oid != self._tip))
        self._tip = info.oid
        self._blobs.forget(adding)
        return info.oid

    def _paths_info(
        self, paths: Sequence[str], revision: str, *, expand: bool = False
    ) -> list[RepoFile]:
        api = self._door.api
        found = self._door.ask(
            lambda: api.get_paths_info(self._repo_id, list(paths), expand=expand, revision=revision)
        )
        return [file for file in found if isinstance(file, RepoFile)]

    def _stream(
        self,
        path: str,
        commit: str,
        consume: Callable[[Iterable[bytes], str], T],
        *,
        seconds: float,
    ) -> T:
        url = self._url(path, commit)
        headers = self._door.headers

        def download() -> T:
            with get_session().stream("GET", url, headers=headers) as response:
                etag = response.headers.get("ETag", "").removeprefix("W/").strip('"')
                return consume(self._counted(response.iter_bytes()), etag)

        return self._door.ask(download, seconds=seconds)

    def _counted(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self._door.count(down=len(chunk))
            yield chunk

    def _url(self, path: str, revision: str) -> str:
        return hf_hub_url(self._repo_id, path, revision=revision, endpoint=self._door.endpoint)

    def _head(self, url: str) -> FileHead:
        """HEAD until an answer has commit, ETag and size; never leaves the hub's own host."""
        for _ in range(MOST_HOPS):
            response = get_session().head(url, headers=self._door.headers, follow_redirects=False)
            head = _file_head(response)
            if head is not None:
                return head
            target = urljoin(url, response.headers.get("Location", ""))
            if urlsplit(target).netloc != urlsplit(url).netloc:
                break
            url = target
        raise TransientHubError(
            f"{self._door.endpoint}: HEAD of {urlsplit(url).path} tells no ETag"
        )


def _file_head(response: httpx2.Response) -> FileHead | None:
    headers = response.headers
    commit = headers.get("X-Repo-Commit")
    etag = headers.get("X-Linked-Etag") or headers.get("ETag")
    size = headers.get("X-Linked-Size")
    if size is None and not response.is_redirect:
        size = headers.get("Content-Length")
    if commit is None or etag is None or size is None:
        return None
    return FileHead(commit=commit, etag=etag.removeprefix("W/").strip('"'), size=int(size))


def _entry(file: RepoFile) -> FileEntry:
    return FileEntry(
        path=file.path,
        size=file.size,
        blob_id=file.blob_id,
        sha256=file.lfs.sha256 if file.lfs else None,
    )
