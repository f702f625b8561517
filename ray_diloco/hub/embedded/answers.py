"""The shapes of the Hub's answers: from history to JSON and headers."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from aiohttp import web

from ray_diloco.hub.digest import CHUNK_BYTES, etag_of
from ray_diloco.hub.embedded.served import ServedRepository
from ray_diloco.hub.history import Commit, files_below
from ray_diloco.hub.repository import FileEntry

Json = dict[str, Any]
POINTER_BYTES = 134


class Refused(Exception):
    """An answer of 400 or above."""

    def __init__(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, code, message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = dict(headers or {})


class BlobResponse(web.FileResponse):
    """The bytes of a file, whole or by range."""

    def __init__(self, blob: Path, headers: Mapping[str, str]) -> None:
        super().__init__(blob, headers=headers, chunk_size=CHUNK_BYTES)
        self.blob = blob


def date(time: str) -> str:
    """A time in the one format that the client reads."""
    plain = time.removesuffix("Z").removesuffix("+00:00")
    return plain + ("Z" if "." in plain else ".000000Z")


def last_commit(commit: Commit) -> Json:
    return {"id": commit.id, "title": commit.message, "date": date(commit.time)}


def file_info(entry: FileEntry) -> Json:
    """A file in a listing."""
    info: Json = {
        "type": "file",
        "oid": entry.blob_id,
        "size": entry.size,
        "path": entry.path,
    }
    if entry.sha256 is not None:
        info["lfs"] = {"oid": entry.sha256, "size": entry.size, "pointerSize": POINTER_BYTES}
    return info


def folder_info(path: str) -> Json:
    """A folder in a listing; its id is none, since folders have no content of their own here."""
    return {"type": "directory", "oid": "0" * 40, "size": 0, "path": path}


def tree(commit: Commit, folder: str, *, recursive: bool) -> list[Json]:
    """Files and folders below a folder, sorted by path. Refused with 404 when there is none."""
    files = files_below(commit.files, folder)
    if not files and folder:
        raise Refused(404, "EntryNotFound", f"{folder} does not exist at {commit.id[:12]}")
    depth = folder.count("/") + 1 if folder else 0
    infos: dict[str, Json] = {}
    for entry in files:
        steps = entry.path.split("/")
        for end in range(depth + 1, len(steps)):
            path = "/".join(steps[:end])
            infos.setdefault(path, folder_info(path))
        infos[entry.path] = file_info(entry)
    return [infos[path] for path in sorted(infos) if recursive or path.count("/") == depth]


def path_info(commit: Commit, path: str) -> Json | None:
    """A file or folder; None when it is not there."""
    if path in commit.files:
        return file_info(commit.files[path])
    return folder_info(path) if files_below(commit.files, path) else None


def model_info(repository: ServedRepository, commit: Commit, *, blobs: bool) -> Json:
    return {
        "id": repository.repo_id,
        "modelId": repository.repo_id,
        "author": repository.repo_id.partition("/")[0],
        "sha": commit.id,
        "private": repository.private,
        "gated": False,
        "disabled": False,
        "createdAt": date(repository.created),
        "lastModified": date(commit.time),
        "downloads": 0,
        "likes": 0,
        "tags": [],
        "siblings": [_sibling(entry, blobs=blobs) for entry in files_below(commit.files, "")],
    }


def refs(repository: ServedRepository) -> Json:
    history = repository.history
    return {
        "branches": _refs("refs/heads", history.branches),
        "tags": _refs("refs/tags", history.tags),
        "converts": [],
        "pullRequests": [],
    }


def commits(lineage: Iterable[Commit]) -> list[Json]:
    return [
        {
            "id": commit.id,
            "title": commit.message,
            "message": "",
            "date": date(commit.time),
            "authors": [{"user": commit.author}],
        }
        for commit in lineage
    ]


def page(
    items: Sequence[Json], *, start: int, limit: int, url: str, query: Mapping[str, str]
) -> tuple[Sequence[Json], dict[str, str]]:
    """One page of a listing, and the headers that lead to the next one."""
    end = start + limit
    if end >= len(items):
        return items[start:], {}
    following = urlencode({**query, "cursor": str(end), "limit": str(limit)})
    return items[start:end], {"Link": f'<{url}?{following}>; rel="next"'}


def file_headers(commit: Commit, entry: FileEntry) -> dict[str, str]:
    """What HEAD and GET of a file tell, also in the answer that only leads to the commit."""
    etag = f'"{etag_of(entry)}"'
    return {
        "ETag": etag,
        "X-Repo-Commit": commit.id,
        "X-Linked-Etag": etag,
        "X-Linked-Size": str(entry.size),
        "Accept-Ranges": "bytes",
        "Content-Disposition": f"inline; filename*=UTF-8''{quote(entry.path.split('/')[-1])}",
    }


def _sibling(entry: FileEntry, *, blobs: bool) -> Json:
    if not blobs:
        return {"rfilename": entry.path}
    sibling: Json = {"rfilename": entry.path, "size": entry.size, "blobId": entry.blob_id}
    if entry.sha256 is not None:
        sibling["lfs"] = {
            "sha256": entry.sha256,
            "size": entry.size,
            "pointerSize": POINTER_BYTES,
        }
    return sibling


def _refs(prefix: str, names: Mapping[str, str]) -> list[Json]:
    return [
        {"name": name, "ref": f"{prefix}/{name}", "targetCommit": names[name]}
        for name in sorted(names)
    ]
