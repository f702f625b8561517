"""Large files on their way in, by the LFS batch protocol with basic and multipart transfers."""

import asyncio
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aiohttp import web

from ray_diloco.hub.digest import CHUNK_BYTES
from ray_diloco.hub.embedded.answers import Refused
from ray_diloco.hub.embedded.changes import checked_sha256
from ray_diloco.hub.embedded.state import HUB, HubState, repository_of
from ray_diloco.hub.embedded.store import Arrival, BlobStore

UPLOAD_ID = re.compile(r"[0-9a-f]{32}")


async def batch(request: web.Request) -> web.Response:
    """Where to send each blob; nowhere when it is there already."""
    repository_of(request)
    asked = await request.json()
    endpoint = f"{request.scheme}://{request.host}"
    objects = [_object(request.app[HUB], endpoint, item) for item in asked["objects"]]
    return web.json_response(
        {"transfer": "basic", "objects": objects},
        content_type="application/vnd.git-lfs+json",
    )


async def upload(request: web.Request) -> web.Response:
    """A whole blob. Refused with 400 when it is not what its name says."""
    state = request.app[HUB]
    size = state.signer.check(request)
    sha256 = checked_sha256(request.match_info["sha256"])
    with state.catalog.store.arriving() as arrival:
        await _receive(request, arrival, size)
        if (arrival.sha256, arrival.size) != (sha256, size):
            raise Refused(400, "BadDigest", "the bytes are not those that were announced")
        await asyncio.to_thread(arrival.keep, sha256)
    return web.Response(headers={"ETag": f'"{sha256}"'})


async def upload_part(request: web.Request) -> web.Response:
    """One part of a blob, kept until the upload is completed."""
    state = request.app[HUB]
    size = state.signer.check(request)
    part = _part(state.catalog.store, request, int(request.match_info["number"]))
    with state.catalog.store.arriving() as arrival:
        await _receive(request, arrival, size)
        if arrival.size != size:
            raise Refused(400, "BadDigest", "the part does not have the size announced")
        await asyncio.to_thread(arrival.keep_at, part)
        return web.Response(headers={"ETag": f'"{arrival.sha256}"'})


async def complete(request: web.Request) -> web.Response:
    """Put the parts together. Refused with 400 when the whole is not what its name says."""
    state = request.app[HUB]
    size = state.signer.check(request)
    sha256 = checked_sha256(request.match_info["sha256"])
    asked = await request.json()
    store = state.catalog.store
    parts = [_part(store, request, number + 1) for number in range(len(asked["parts"]))]
    await asyncio.to_thread(_join, store, parts, sha256, size)
    return web.json_response({})


def _object(state: HubState, endpoint: str, item: dict[str, Any]) -> dict[str, Any]:
    sha256, size = checked_sha256(item["oid"]), int(item["size"])
    answer: dict[str, Any] = {"oid": sha256, "size": size, "authenticated": True}
    store = state.catalog.store
    if store.size(sha256) == size:
        store.touch(sha256)
        return answer
    if size <= state.part_bytes:
        href = endpoint + state.signer.signed(f"/blobs/{sha256}", size=size)
        return {**answer, "actions": {"upload": {"href": href, "header": {}}}}
    upload = secrets.token_hex(16)
    sizes = [min(state.part_bytes, size - start) for start in range(0, size, state.part_bytes)]
    header = {"chunk_size": str(state.part_bytes)}
    for number, part in enumerate(sizes, start=1):
        path = f"/blobs/{sha256}/{upload}/{number}"
        header[str(number)] = endpoint + state.signer.signed(path, size=part)
    href = endpoint + state.signer.signed(f"/blobs/{sha256}/{upload}", size=size)
    return {**answer, "actions": {"upload": {"href": href, "header": header}}}


async def _receive(request: web.Request, arrival: Arrival, size: int) -> None:
    async for chunk in request.content.iter_chunked(CHUNK_BYTES):
        if arrival.size + len(chunk) > size:
            raise Refused(400, "BadDigest", "more bytes arrive than were announced")
        await asyncio.to_thread(arrival.write, chunk)


def _part(store: BlobStore, request: web.Request, number: int) -> Path:
    upload = request.match_info["upload"]
    if not UPLOAD_ID.fullmatch(upload):
        raise Refused(404, "EntryNotFound", "there is no such upload")
    return store.part(upload, number)


def _join(store: BlobStore, parts: list[Path], sha256: str, size: int) -> None:
    try:
        with store.arriving() as arrival:
            for chunk in _chunks(parts):
                arrival.write(chunk)
            if (arrival.sha256, arrival.size) != (sha256, size):
                raise Refused(400, "BadDigest", "the parts are not what was announced")
            arrival.keep(sha256)
    finally:
        for part in parts:
            part.unlink(missing_ok=True)


def _chunks(parts: list[Path]) -> Iterator[bytes]:
    for part in parts:
        if not part.exists():
            raise Refused(400, "BadDigest", "a part is missing")
        with part.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
