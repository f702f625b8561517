"""What all requests of the embedded hub share."""

import asyncio
import hmac
from dataclasses import dataclass, field

from aiohttp import web

from ray_diloco.errors import RevisionMissing
from ray_diloco.hub.embedded.answers import Refused
from ray_diloco.hub.embedded.catalog import Catalog
from ray_diloco.hub.embedded.served import ServedRepository
from ray_diloco.hub.embedded.signing import Signer
from ray_diloco.hub.embedded.strict import LAGGING, Plan, Quota, Rules
from ray_diloco.hub.history import Commit
from ray_diloco.hub.secret import Secret


@dataclass(slots=True, kw_only=True)
class HubState:
    """``reader``: a second token that may only read. ``part_bytes``: larger blobs come in parts."""

    catalog: Catalog
    token: Secret
    reader: Secret | None
    signer: Signer
    rules: Rules
    quota: Quota
    plan: Plan
    part_bytes: int
    committing: dict[str, asyncio.Lock] = field(default_factory=dict[str, asyncio.Lock])


HUB = web.AppKey("HUB", HubState)


def role_of(request: web.Request) -> str:
    """What the token of a request may do: "write", "read", or "" for nothing."""
    state = request.app[HUB]
    given = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if hmac.compare_digest(given.encode(), state.token.reveal().encode()):
        return "write"
    if state.reader and hmac.compare_digest(given.encode(), state.reader.reveal().encode()):
        return "read"
    return ""


def repository_of(request: web.Request) -> ServedRepository:
    """The repository of a request's path. Refused with 404."""
    repo_id = f"{request.match_info['owner']}/{request.match_info['name']}"
    repository = request.app[HUB].catalog.find(repo_id)
    if repository is None:
        raise Refused(404, "RepoNotFound", "Repository not found")
    return repository


def commit_of(
    request: web.Request, repository: ServedRepository, revision: str | None = None
) -> Commit:
    """The commit that a revision names, that of the path when None. Refused with 404."""
    revision = revision or request.match_info["revision"]
    try:
        commit = repository.history.resolve(revision)
    except RevisionMissing:
        raise Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}") from None
    if LAGGING.get() and revision in repository.history.branches and commit.parent:
        return repository.history.commits.get(commit.parent, commit)
    return commit
