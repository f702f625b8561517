"""The embedded hub in a Ray actor, so that it shares no interpreter with anybody."""

import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayTaskError

from ray_diloco.cluster.hub_service import embedded_hub
from ray_diloco.errors import ConfigError
from ray_diloco.hub.embedded.server import EmbeddedHub
from ray_diloco.hub.secret import Secret
from ray_diloco.hub.settings import HubSettings


class _HubActor:
    """Serves a folder until it is closed."""

    def __init__(self) -> None:
        self._hub: EmbeddedHub | None = None

    def start_hub(self, folder: Path, settings: HubSettings, *, seed: int, token: Secret) -> str:
        """Listen; gives the endpoint."""
        self._hub = embedded_hub(folder, settings, seed=seed, token=token)
        return self._hub.start().endpoint

    def close_hub(self) -> None:
        """Stop serving."""
        if self._hub is not None:
            self._hub.close()


actor_class: Any = ray.remote
HubActor: Any = actor_class(num_cpus=0, max_restarts=0)(_HubActor)


@contextmanager
def served_by_actor(
    folder: Path, settings: HubSettings, *, seed: int, host: Any = None
) -> Generator[tuple[str, Secret], None, None]:
    """Endpoint and token of a hub that lasts as long as the context. ``host``: the actor that
    serves it (`start_hub`, `close_hub`); None: one of its own, with the machine's time. ConfigError
    when the address cannot be had.
    """
    token = Secret("hf_" + secrets.token_urlsafe(32))
    actor: Any = host or HubActor.remote()
    try:
        try:
            started = actor.start_hub.remote(folder, settings, seed=seed, token=token)
            endpoint = str(ray.get(started))
        except RayTaskError as error:
            raise ConfigError(
                "hub.port", settings.port, f"expected a free port on {settings.host}: {error.cause}"
            ) from None
        yield endpoint, token
    finally:
        if ray.is_initialized():
            ray.wait([actor.close_hub.remote()], timeout=5.0)
            if host is None:
                ray.kill(actor)
