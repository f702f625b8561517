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
from ray_diloco.hub.embedded.storm import plan_of, rules_of
from ray_diloco.hub.secret import Secret
from ray_diloco.hub.settings import HubSettings


class _HubActor:
    """Serves a folder until it is closed."""

    def __init__(self, folder: Path, settings: HubSettings, *, seed: int, token: Secret) -> None:
        self._hub = EmbeddedHub(
            folder,
            host=settings.host,
            port=settings.port,
            token=token,
            rules=rules_of(settings),
            plan=plan_of(settings, seed=seed),
        )

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
    folder: Path, settings: HubSettings, *, seed: int
) -> Generator[tuple[str, Secret], None, None]:
    """Endpoint and token of a hub that lasts as long as the context. ConfigError when the address
    cannot be had.
    """
    token = Secret("hf_" + secrets.token_urlsafe(32))
    actor: Any = HubActor.remote(folder, settings, seed=seed, token=token)
    try:
        try:
            endpoint = str(ray.get(actor.start.remote()))
        except RayTaskError as error:
            raise ConfigError(
                "hub.port", settings.port, f"expected a free port on {settings.host}: {error.cause}"
            ) from None
        yield endpoint, token
    finally:
        if ray.is_initialized():
            ray.wait([actor.close.remote()], timeout=5.0)
            ray.kill(actor)
