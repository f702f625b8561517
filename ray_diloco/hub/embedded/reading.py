"""Requests that change nothing."""

import asyncio
from urllib.parse import quote

from aiohttp import web

from ray_diloco.errors import EntryMissing
from ray_diloco.hub.digest import etag_of
from ray_diloco.hub.embedded import answers
from ray_diloco.hub.embedded.answers import Json, Refused
from ray_diloco.hub.embedded.served import ServedRepository
from ray_diloco.hub.embedded.state import HUB, commit_of, repository_of, role_of
from ray_diloco.hub.history import Commit

TREE_PAGE = 1000
COMMITS_PAGE = 50


async def whoami(request: web.Request) -> web.Response:
    return web.json_response(
        {
            "type": "user",
            "id": "local",
            "name": "local",
            "fullname": "local",
            "orgs": [],
            "auth": {
                "type": "access_token",
                "accessToken": {"displayName": "local", "role": role_of(request)},
            },
        }
    )


async def info(request: web.Request) -> web.Response:
    repository = repository_of(request)
    revision = request.match_info.get("revision", "main")
    commit = commit_of(request, repository, revision)
    blobs = request.query.get("blobs", "").lower() in ("true", "1")
    return web.json_response(answers.model_info(repository, commit, blobs=blobs))


async def tree(request: web.Request) -> web.Response:
    repository = repository_of(request)
    commit = commit_of(request, repository)
    folder = request.match_info.get("path", "").strip("/")
    recursive = _is_true(request.query.get("recursive"))
    items = answers.tree(commit, folder, recursive=recursive)
    found, headers = _page(request, items, TREE_PAGE)
    if _is_true(request.query.get("expand")):
        found = [_expanded(repository, commit, item) for item in found]
    return web.json_response(found, headers=headers)


async def paths_info(request: web.Request) -> web.Response:
    repository = repository_of(request)
    commit = commit_of(request, repository)
    form = await request.post()
    paths = [str(path) for path in form.getall("paths", [])]
    found = [item for path in paths if (item := answers.path_info(commit, path)) is not None]
    if _is_true(str(form.get("expand", ""))):
        found = [_expanded(repository, commit, item) for item in found]
    return web.json_response(found)


async def commits(request: web.Request) -> web.Response:
    repository = repository_of(request)
    lineage = list(repository.history.ancestors(commit_of(request, repository).id))
    found, headers = _page(request, answers.commits(lineage), COMMITS_PAGE)
    return web.json_response(found, headers={**headers, "X-Total-Count": str(len(lineage))})


async def refs(request: web.Request) -> web.Response:
    return web.json_response(answers.refs(repository_of(request)))


async def resolve(request: web.Request) -> web.StreamResponse:
    """HEAD or GET of a file. A branch or tag leads to its commit, with all that a HEAD tells."""
    repository = repository_of(request)
    commit = commit_of(request, repository)
    path = request.match_info["path"]
    entry = commit.files.get(path)
    if entry is None:
        raise Refused(404, "EntryNotFound", f"{path} does not exist", {"X-Repo-Commit": commit.id})
    headers = answers.file_headers(commit, entry)
    if request.match_info["revision"] != commit.id:
        pinned = f"/{repository.repo_id}/resolve/{commit.id}/{quote(path)}"
        return web.Response(status=307, headers={**headers, "Location": pinned})
    blob = request.app[HUB].catalog.store.path(etag_of(entry))
    if not await asyncio.to_thread(blob.exists):
        raise Refused(500, "BlobMissing", f"the bytes of {path} are not in the store")
    return answers.BlobResponse(blob, headers)


def _page(request: web.Request, items: list[Json], size: int) -> tuple[list[Json], dict[str, str]]:
    query = {key: value for key, value in request.query.items() if key not in ("cursor", "limit")}
    found, headers = answers.page(
        items,
        start=_count(request.query.get("cursor"), 0),
        limit=max(1, min(_count(request.query.get("limit"), size), size)),
        url=f"{request.scheme}://{request.host}{request.rel_url.raw_path}",
        query=query,
    )
    return list(found), headers


def _expanded(repository: ServedRepository, commit: Commit, item: Json) -> Json:
    if item["type"] != "file":
        return item
    try:
        changed = repository.history.last_change(item["path"], commit.id)
    except EntryMissing:
        return item
    return {**item, "lastCommit": answers.last_commit(changed)}


def _is_true(text: str | None) -> bool:
    return (text or "").lower() in ("true", "1")


def _count(text: str | None, otherwise: int) -> int:
    return int(text) if text and text.isdecimal() else otherwise
