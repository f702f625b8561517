"""Getting in before a run starts: is the token good, the repository there, private and writable?

Each question costs a request or two, and a no is one line that says what to do.
"""

import os

from huggingface_hub import CommitOperationAdd, get_token

from ray_diloco.errors import ConfigError, PermanentHubError, RepositoryMissing, RevisionMissing
from ray_diloco.hub.connect import timeouts_of
from ray_diloco.hub.door import HubDoor
from ray_diloco.hub.secret import Secret
from ray_diloco.hub.settings import HUGGINGFACE_ENDPOINT, HubSettings
from ray_diloco.hub.transport import Timeouts


def find_token(endpoint: str = HUGGINGFACE_ENDPOINT) -> Secret:
    """The user's token: HF_TOKEN, or the Hub's own login. PermanentHubError when there is none."""
    token = os.environ.get("HF_TOKEN") or get_token()
    if not token:
        way = "set HF_TOKEN or log in with `hf auth login`"
        if endpoint != HUGGINGFACE_ENDPOINT:
            way = "set HF_TOKEN to one that this hub knows; ray-diloco-hub prints it at its start"
        raise PermanentHubError(f"no token for {endpoint}: {way}")
    return Secret(token.strip())


def enter(settings: HubSettings, *, endpoint: str, token: Secret, repo_id: str, make: bool) -> str:
    """All questions at once: token, repository (made if ``make``), privacy, permission to write.

    Gives the full name of the repository. PermanentHubError or ConfigError with the first no.
    """
    timeouts = timeouts_of(settings)
    owner = who_is(endpoint=endpoint, token=token, timeouts=timeouts)
    repo_id = repo_id if "/" in repo_id else f"{owner}/{repo_id}"
    ask = ensure_repository if make else require_repository
    ask(
        endpoint=endpoint,
        token=token,
        repo_id=repo_id,
        branch=settings.branch,
        allow_public=settings.allow_public,
        timeouts=timeouts,
    )
    check_write_permission(
        endpoint=endpoint,
        token=token,
        repo_id=repo_id,
        branch=settings.branch,
        timeouts=timeouts,
    )
    return repo_id


def who_is(*, endpoint: str, token: Secret, timeouts: Timeouts | None = None) -> str:
    """The name of the token's owner. PermanentHubError when the token is not good."""
    door = HubDoor(endpoint=endpoint, token=token, timeouts=timeouts)
    api = door.api
    return str(door.ask(lambda: api.whoami())["name"])


def ensure_repository(
    *,
    endpoint: str,
    token: Secret,
    repo_id: str,
    branch: str = "main",
    allow_public: bool = False,
    timeouts: Timeouts | None = None,
) -> str:
    """Make the repository (private) and the branch unless they are there; gives its full name.

    ``repo_id`` without an owner belongs to the token's. ConfigError when everybody can read the
    repository and ``allow_public`` does not permit that: asked of the hub, never assumed.
    """
    door = HubDoor(endpoint=endpoint, token=token, timeouts=timeouts)
    if "/" not in repo_id:
        repo_id = f"{who_is(endpoint=endpoint, token=token, timeouts=timeouts)}/{repo_id}"
    if not _is_there(door, repo_id):
        _create(door, repo_id)
    require_private(door, repo_id, allow_public=allow_public)
    if branch != "main":
        api = door.api
        door.ask(lambda: api.create_branch(repo_id, branch=branch, exist_ok=True))
    return repo_id


def require_repository(
    *,
    endpoint: str,
    token: Secret,
    repo_id: str,
    branch: str = "main",
    allow_public: bool = False,
    timeouts: Timeouts | None = None,
) -> None:
    """For those who join: the repository and branch must be there. Makes nothing. ConfigError."""
    door = HubDoor(endpoint=endpoint, token=token, timeouts=timeouts)
    if not _is_there(door, repo_id):
        raise ConfigError(
            "hub.repo_id",
            repo_id,
            "no such repository, or the token may not see it; start the master first",
        )
    require_private(door, repo_id, allow_public=allow_public)
    api = door.api
    try:
        door.ask(lambda: api.model_info(repo_id, revision=branch))
    except RevisionMissing:
        raise ConfigError("hub.branch", branch, f"no such branch in {repo_id}") from None


def require_private(door: HubDoor, repo_id: str, *, allow_public: bool) -> None:
    """ConfigError unless the hub says that the repository is private."""
    api = door.api
    if not allow_public and door.ask(lambda: api.model_info(repo_id)).private is not True:
        raise ConfigError(
            "hub.repo_id",
            repo_id,
            "everybody can read this repository; make it private, "
            "or set hub.allow_public=true if that is meant",
        )


def check_write_permission(
    *,
    endpoint: str,
    token: Secret,
    repo_id: str,
    branch: str = "main",
    timeouts: Timeouts | None = None,
) -> None:
    """Ask whether a file could be sent; none is, and no commit is made. PermanentHubError."""
    door = HubDoor(endpoint=endpoint, token=token, timeouts=timeouts)
    api = door.api
    probe = CommitOperationAdd("nodes/probe.json", b"{}\n")
    door.ask(lambda: api.preupload_lfs_files(repo_id, [probe], revision=branch))


def delete_repository(*, endpoint: str, token: Secret, repo_id: str) -> None:
    """Delete the repository with all that is in it."""
    door = HubDoor(endpoint=endpoint, token=token)
    api = door.api
    door.ask(lambda: api.delete_repo(repo_id))


def _is_there(door: HubDoor, repo_id: str) -> bool:
    api = door.api
    try:
        door.ask(lambda: api.model_info(repo_id))
    except RepositoryMissing:
        return False
    return True


def _create(door: HubDoor, repo_id: str) -> None:
    api = door.api
    door.ask(lambda: api.create_repo(repo_id, private=True))
