"""The embedded hub in a Ray actor, so that it shares no interpreter with anybody."""

import secrets
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from ray_diloco.cluster.hub_service import embedded_hub
from ray_diloco.cluster.placing import beside_this_process
from ray_diloco.cluster.reach import listening, told
from ray_diloco.errors import ConfigError
from ray_diloco.hub.embedded.server import EmbeddedHub
from ray_diloco.hub.secret import Secret
from ray_diloco.hub.settings import HubSettings

STARTS = "starts"
"""In the hub's folder: the port of each start, a line each."""
ANSWER_SECONDS = 5.0


class _HubActor:
    """Serves a folder until it is closed. When Ray starts its process again it serves at once, with
    the same port, folder and token.
    """

    def __init__(self, folder: Path, settings: HubSettings, *, seed: int, token: Secret) -> None:
        self._folder = folder
        self._settings = settings
        self._seed = seed
        self._token = token
        self._hub: EmbeddedHub | None = None
        if ray.get_runtime_context().was_current_actor_reconstructed:
            self._serve(int(self._starts()[-1]))
        else:
            (folder / STARTS).unlink(missing_ok=True)

    def start_hub(self) -> str:
        """Listen; gives the endpoint."""
        return (self._hub or self._serve(self._settings.port)).endpoint

    def restarts(self) -> int:
        """How often its process was started again."""
        return len(self._starts()) - 1

    def close_hub(self) -> None:
        """Stop serving."""
        if self._hub is not None:
            self._hub.close()

    def _serve(self, port: int) -> EmbeddedHub:
        settings = replace(self._settings, port=port)
        hub = embedded_hub(self._folder, settings, seed=self._seed, token=self._token)
        self._hub = hub.start()
        with (self._folder / STARTS).open("a", encoding="ascii") as file:
            file.write(f"{self._hub.endpoint.rpartition(':')[2]}\n")
        return self._hub

    def _starts(self) -> list[str]:
        return (self._folder / STARTS).read_text(encoding="ascii").split()


actor_class: Any = ray.remote
HubActor: Any = actor_class(num_cpus=0)(_HubActor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The way to a hub that is served by an actor."""

    endpoint: str
    token: Secret
    actor: Any = field(repr=False)

    def restarts(self) -> int:
        """How often the hub's own process was started again, as far as it still says so."""
        try:
            return ray.get(self.actor.restarts.remote(), timeout=ANSWER_SECONDS)
        except (RayError, GetTimeoutError):
            return 0


@contextmanager
def served_by_actor(
    folder: Path, settings: HubSettings, *, seed: int, host: Any = None, restarts: int = 0
) -> Generator[Served, None, None]:
    """A hub that lasts as long as the context. ``host``: the actor that serves it (`start_hub`,
    `restarts`, `close_hub`); None: one of its own, with the machine's time, which is started again
    so often when it dies. ConfigError when the address cannot be had.
    """
    token = Secret("hf_" + secrets.token_urlsafe(32))
    reachable = listening(settings)
    if host is None:
        options = beside_this_process() | {"max_restarts": restarts}
        actor = HubActor.options(**options).remote(folder, reachable, seed=seed, token=token)
        started = actor.start_hub.remote()
    else:
        actor, started = host, host.start_hub.remote(folder, reachable, seed=seed, token=token)
    try:
        try:
            endpoint = told(str(ray.get(started)))
        except RayTaskError as error:
            raise ConfigError(
                "hub.port", settings.port, f"expected a free port on {settings.host}: {error.cause}"
            ) from None
        yield Served(endpoint=endpoint, token=token, actor=actor)
    finally:
        if ray.is_initialized():
            ray.wait([actor.close_hub.remote()], timeout=5.0)
            if host is None:
                ray.kill(actor)
