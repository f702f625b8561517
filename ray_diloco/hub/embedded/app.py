"""The routes of the embedded hub: who may pass, where a request goes, how a refusal looks."""

import errno
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from ray_diloco.errors import HubError
from ray_diloco.hub.embedded import cards, reading, uploads, writing
from ray_diloco.hub.embedded.answers import Refused
from ray_diloco.hub.embedded.state import HUB, HubState, role_of
from ray_diloco.hub.embedded.strict import suffer

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

LARGEST_BODY = 1 << 28
"""Bytes of a request other than a blob; a commit carries its small files."""

BY_SIGNATURE = frozenset({"upload", "upload_part", "complete"})
FOR_READERS = frozenset(
    {"whoami", "info", "tree", "paths_info", "commits", "refs", "resolve", "validate_card"}
)
MODEL = "/api/models/{owner}/{name}"


def make_app(state: HubState) -> web.Application:
    """The application; ``state`` is its own. A route is known by the name of its handler."""
    app = web.Application(
        middlewares=[_answer_refusals, _authorize, _suffer_faults], client_max_size=LARGEST_BODY
    )
    app[HUB] = state
    app.on_response_prepare.append(_keep_etag)
    app.add_routes(
        [
            web.get("/api/whoami-v2", reading.whoami),
            web.post("/api/repos/create", writing.create),
            web.delete("/api/repos/delete", writing.delete),
            web.post("/api/validate-yaml", cards.validate_card),
            web.get(MODEL, reading.info),
            web.get(MODEL + "/revision/{revision}", reading.info),
            web.get(MODEL + "/tree/{revision}", reading.tree),
            web.get(MODEL + "/tree/{revision}/{path:.*}", reading.tree),
            web.post(MODEL + "/paths-info/{revision}", reading.paths_info),
            web.get(MODEL + "/commits/{revision}", reading.commits),
            web.get(MODEL + "/refs", reading.refs),
            web.put(MODEL + "/settings", writing.settings),
            web.post(MODEL + "/preupload/{revision}", writing.preupload),
            web.post(MODEL + "/commit/{revision}", writing.commit),
            web.post(MODEL + "/super-squash/{revision}", writing.squash),
            web.post(MODEL + "/branch/{revision}", writing.create_branch),
            web.delete(MODEL + "/branch/{revision}", writing.delete_branch),
            web.post(MODEL + "/tag/{revision}", writing.create_tag),
            web.delete(MODEL + "/tag/{revision}", writing.delete_tag),
            web.post("/{owner}/{name}.git/info/lfs/objects/batch", uploads.batch),
            web.put("/blobs/{sha256}", uploads.upload),
            web.put("/blobs/{sha256}/{upload}/{number:[0-9]+}", uploads.upload_part),
            web.post("/blobs/{sha256}/{upload}", uploads.complete),
            web.get("/{owner}/{name}/resolve/{revision}/{path:.+}", reading.resolve),
        ]
    )
    return app


def _route(request: web.Request) -> str:
    return getattr(request.match_info.handler, "__name__", "")


@web.middleware
async def _answer_refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Refused as refused:
        return _refusal(refused)
    except HubError as error:
        return _refusal(Refused(400, "BadRequest", str(error)))
    except OSError as error:
        logger.exception("the disk of the hub refuses")
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        return _refusal(
            Refused(507 if full else 500, "DiskError", f"the hub's disk: {error.strerror}")
        )


@web.middleware
async def _authorize(request: web.Request, handler: Handler) -> web.StreamResponse:
    route = _route(request)
    if route not in BY_SIGNATURE:
        match role_of(request):
            case "":
                raise Refused(401, "Unauthorized", "Invalid credentials in Authorization header")
            case "read" if route not in FOR_READERS:
                raise Refused(403, "Forbidden", "this token may only read")
    return await handler(request)


@web.middleware
async def _suffer_faults(request: web.Request, handler: Handler) -> web.StreamResponse:
    fault = request.app[HUB].plan(_route(request), request)
    if fault is None:
        return await handler(request)
    return await suffer(fault, request, lambda: handler(request))


async def _keep_etag(_request: web.Request, response: web.StreamResponse) -> None:
    """The ETag of a file is the identity of its content, not aiohttp's of time and size."""
    if "X-Linked-Etag" in response.headers:
        response.headers["ETag"] = response.headers["X-Linked-Etag"]


def _refusal(refused: Refused) -> web.Response:
    return web.json_response(
        {"error": refused.message},
        status=refused.status,
        headers={
            "X-Error-Code": refused.code,
            "X-Error-Message": refused.message.encode("ascii", "replace").decode(),
            **refused.headers,
        },
    )
