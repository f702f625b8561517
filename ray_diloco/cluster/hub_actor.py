"""The embedded hub in a Ray actor, so that it shares no interpreter with anybody."""

import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayTaskError

from ray_diloco.errors import ConfigError
from ray_diloco.hub.embedded.server import EmbeddedHub
from ray_diloco.hub.secret import Secret


class _HubActor:
    """Serves a folder until it is closed."""

    def __init__(self, folder: Path, *, host: str, port: int, token: Secret) -> None:
        self._hub = EmbeddedHub(folder, host=host, port=port, token=token)

    def start(self) -> str:
        """Listen; gives the endpoint."""
        return self._hub.start().endpoint

    def close(self) -> None:
        """Stop serving."""
        self._hub.close()


actor_class: Any = ray.remote
HubActor: Any = actor_class(num_cpus=0, max_restarts=0)(_HubActor)


@contextmanager
def served_by_actor(
    folder: Path, *, host: str, port: int
) -> Generator[tuple[str, Secret], None, None]:
    """Endpoint and token of a hub that lasts as long as the context. ConfigError when the address
    cannot be had.
    """
    token = Secret("hf_" + secrets.token_urlsafe(32))
    actor: Any = HubActor.remote(folder, host=host, port=port, token=token)
    try:
        try:
            endpoint = str(ray.get(actor.start.remote()))
        except RayTaskError as error:
            raise ConfigError(
                "hub.port", port, f"expected a free port on {host}: {error.cause}"
            ) from None
        yield endpoint, token
    finally:
        if ray.is_initialized():
            ray.wait([actor.close.remote()], timeout=5.0)
            ray.kill(actor)
