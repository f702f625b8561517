"""Requests that change a repository. Disk work happens in threads, beside the event loop."""

import asyncio
import base64
from typing import Any

from aiohttp import web

from ray_diloco.errors import ParentConflict, RevisionMissing
from ray_diloco.hub.digest import etag_of, is_large
from ray_diloco.hub.embedded.answers import Refused
from ray_diloco.hub.embedded.changes import Changes, missing_blob, read_changes
from ray_diloco.hub.embedded.served import ServedRepository
from ray_diloco.hub.embedded.state import HUB, HubState, commit_of, repository_of
from ray_diloco.hub.embedded.store import BlobStore
from ray_diloco.hub.history import Commit

LARGEST_REGULAR = 10_000_000


async def create(request: web.Request) -> web.Response:
    asked = await _json(request)
    if asked.get("type") not in (None, "model"):
        raise Refused(400, "BadRequest", "this hub has model repositories only")
    repo_id = f"{asked.get('organization') or 'local'}/{asked.get('name')}"
    private = bool(asked.get("private")) or asked.get("visibility") == "private"
    catalog = request.app[HUB].catalog
    _, is_new = await asyncio.to_thread(catalog.create, repo_id, private=private)
    answer = {"url": f"{_endpoint(request)}/{repo_id}", "name": repo_id, "id": repo_id}
    if not is_new:
        answer["error"] = "You already created this model repo"
    return web.json_response(answer, status=200 if is_new else 409)


async def delete(request: web.Request) -> web.Response:
    asked = await _json(request)
    repo_id = f"{asked.get('organization') or 'local'}/{asked.get('name')}"
    if not await asyncio.to_thread(request.app[HUB].catalog.delete, repo_id):
        raise Refused(404, "RepoNotFound", "Repository not found")
    return web.json_response({})


async def settings(request: web.Request) -> web.Response:
    repository = repository_of(request)
    asked = await _json(request)
    private = asked["private"] if "private" in asked else asked.get("visibility") == "private"
    await asyncio.to_thread(repository.set_private, bool(private))
    return web.json_response({"private": repository.private})


async def preupload(request: web.Request) -> web.Response:
    """How each file is to be sent, and what is there under its name now."""
    repository = repository_of(request)
    commit = commit_of(request, repository)
    asked = await _json(request)
    files = [_upload_mode(commit, file) for file in asked.get("files", [])]
    return web.json_response({"files": files})


async def commit(request: web.Request) -> web.Response:
    repository = repository_of(request)
    state = request.app[HUB]
    body = await request.read()
    changes = await asyncio.to_thread(read_changes, body)
    turn = state.committing.setdefault(repository.repo_id, asyncio.Lock())
    if turn.locked() and state.rules.one_commit_at_a_time:
        raise Refused(409, "Conflict", "Another commit operation is in progress")
    async with turn:
        made = await asyncio.to_thread(
            _commit, state, repository, request.match_info["revision"], changes
        )
    return web.json_response(
        {
            "success": True,
            "commitOid": made.id,
            "commitUrl": f"{_endpoint(request)}/{repository.repo_id}/commit/{made.id}",
        }
    )


async def squash(request: web.Request) -> web.Response:
    repository = repository_of(request)
    asked = await _json(request)
    message = str(asked.get("message") or "squash")
    try:
        await asyncio.to_thread(repository.squash, request.match_info["revision"], message)
    except RevisionMissing as error:
        raise Refused(404, "RevisionNotFound", str(error)) from None
    await asyncio.to_thread(request.app[HUB].catalog.collect_garbage)
    return web.json_response({})


async def create_branch(request: web.Request) -> web.Response:
    repository = repository_of(request)
    asked = await _json(request)
    name = request.match_info["revision"]
    if name in repository.history.branches:
        raise Refused(409, "Conflict", f"Reference {name} exists already")
    start = commit_of(request, repository, str(asked.get("startingPoint") or "main"))
    await asyncio.to_thread(repository.set_branch, name, start.id)
    return web.json_response({})


async def delete_branch(request: web.Request) -> web.Response:
    repository = repository_of(request)
    name = request.match_info["revision"]
    if name == "main":
        raise Refused(403, "Forbidden", "the branch main stays")
    if name not in repository.history.branches:
        raise Refused(404, "RevisionNotFound", f"there is no branch {name}")
    await asyncio.to_thread(repository.delete_branch, name)
    return web.json_response({})


async def create_tag(request: web.Request) -> web.Response:
    repository = repository_of(request)
    target = commit_of(request, repository)
    name = str((await _json(request)).get("tag"))
    if name in repository.history.tags:
        raise Refused(409, "Conflict", f"Tag {name} exists already")
    await asyncio.to_thread(repository.set_tag, name, target.id)
    return web.json_response({})


async def delete_tag(request: web.Request) -> web.Response:
    repository = repository_of(request)
    name = request.match_info["revision"]
    if name not in repository.history.tags:
        raise Refused(404, "RevisionNotFound", f"there is no tag {name}")
    await asyncio.to_thread(repository.set_tag, name, None)
    return web.json_response({})


def _commit(state: HubState, repository: ServedRepository, branch: str, changes: Changes) -> Commit:
    """Store the small files, check the large ones, and move the branch."""
    store = state.catalog.store
    _check_deletions(repository, branch, changes)
    _check_large(store, changes)
    for blob_id, content in changes.contents.items():
        store.put(blob_id, content)
    try:
        if changes.parent is None or changes.parent == repository.history.tip(branch).id:
            state.quota.take(repository.repo_id)
        return repository.commit(
            branch,
            additions=changes.additions,
            deletions=changes.deletions,
            parent=changes.parent,
            message=changes.message,
        )
    except ParentConflict as error:
        message = f"A commit has happened since. Please refresh and try again. ({error})"
        raise Refused(412, "ParentConflict", message) from None
    except RevisionMissing as error:
        raise Refused(404, "RevisionNotFound", str(error)) from None


def _check_deletions(repository: ServedRepository, branch: str, changes: Changes) -> None:
    tip = repository.history.branches.get(branch)
    files = repository.history.commits[tip].files if tip else {}
    for path in changes.deletions:
        if not path.endswith("/") and path not in files:
            raise Refused(404, "EntryNotFound", f"A file with this name doesn't exist: {path}")


def _check_large(store: BlobStore, changes: Changes) -> None:
    for entry in changes.additions:
        if entry.sha256 is not None and store.size(entry.sha256) != entry.size:
            raise missing_blob(entry.path)


def _upload_mode(commit: Commit, file: dict[str, Any]) -> dict[str, Any]:
    path = file["path"]
    there = commit.files.get(path)
    large = is_large(path) or file["size"] > LARGEST_REGULAR or _is_binary(file.get("sample", ""))
    return {
        "path": path,
        "uploadMode": "lfs" if large else "regular",
        "shouldIgnore": False,
        "oid": etag_of(there) if there else None,
    }


def _is_binary(sample: str) -> bool:
    return b"\0" in base64.b64decode(sample)


def _endpoint(request: web.Request) -> str:
    return f"{request.scheme}://{request.host}"


async def _json(request: web.Request) -> dict[str, Any]:
    """The object in a request's body. Refused with 400."""
    try:
        asked = await request.json() if request.can_read_body else {}
    except ValueError:
        asked = None
    if not isinstance(asked, dict):
        raise Refused(400, "BadRequest", "the body is no JSON object")
    return asked
