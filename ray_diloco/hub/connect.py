"""One call from settings to a repository."""

import os

from ray_diloco.errors import ConfigError
from ray_diloco.hub.client import HubRepository
from ray_diloco.hub.memory import MemoryRepository, MemoryStore
from ray_diloco.hub.repository import Repository
from ray_diloco.hub.secret import Secret
from ray_diloco.hub.settings import HUGGINGFACE_ENDPOINT, HubKind, HubSettings
from ray_diloco.hub.transport import Timeouts


def connect(
    settings: HubSettings,
    *,
    repo_id: str,
    endpoint: str | None = None,
    token: Secret | None = None,
    store: MemoryStore | None = None,
) -> Repository:
    """A handle on the run's repository, with traffic of its own; makes no request yet.

    ``endpoint``: of the embedded hub, when the run started one. ``store``: what participants of
    one process share with `hub=memory`. ConfigError when what the kind needs is missing.
    """
    if settings.kind == HubKind.memory:
        if store is None:
            raise ConfigError("hub", "memory", "participants in other processes cannot share it")
        return MemoryRepository(repo_id, branch=settings.branch, store=store)
    return HubRepository(
        endpoint=endpoint_of(settings, endpoint),
        token=token,
        repo_id=repo_id,
        branch=settings.branch,
        timeouts=timeouts_of(settings),
    )


def endpoint_of(settings: HubSettings, started: str | None = None) -> str:
    """The address of the hub: of the one that the run started, or as configured; of huggingface.co,
    or what HF_ENDPOINT says in its place, as for all that uses the Hub. ConfigError.
    """
    endpoint = started or settings.endpoint
    if endpoint is None and settings.kind == HubKind.huggingface:
        endpoint = os.environ.get("HF_ENDPOINT") or HUGGINGFACE_ENDPOINT
    if endpoint is None:
        raise ConfigError("hub.endpoint", None, "the address of a hub, which was not started here")
    return endpoint.rstrip("/")


def timeouts_of(settings: HubSettings) -> Timeouts:
    """The timeouts of every call."""
    return Timeouts(
        connect=settings.connect_timeout,
        read=settings.read_timeout,
        total=settings.total_timeout,
        transfer=settings.transfer_timeout,
    )
