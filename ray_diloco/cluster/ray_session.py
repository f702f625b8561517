"""Ray as a run uses it: started on this machine, or joined where it runs already."""

import gc
import os
import shutil
import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from ray_diloco.cluster.settings import RaySettings
from ray_diloco.errors import ConfigError

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "1",
}

LISTENER_SECONDS = 10.0
AUTH = "RAY_AUTH_MODE"
"""Ray reads its own token where this says so, and not by itself when an address is given."""
_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


@contextmanager
def ray_session(settings: RaySettings) -> Generator[None, None, None]:
    """Ray, for as long as the context lasts; one that was there already stays as it was. One that
    was started here leaves no files either, its own logs among them.

    ConfigError when there is no Ray at the address, and when the port of the metrics is taken.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    import ray  # its import reads the environment

    if ray.is_initialized():
        yield
        return
    if settings.metrics_port is not None:
        _require_free(settings.metrics_port)
    try:
        _require_listener(settings.address)
        gc.collect()  # handles of an earlier Ray: those of the new one may have the same ids
        with _without_tokens():
            context: Any = ray.init(**_arguments(settings))
    except Exception as error:  # Ray raises plain ones, too
        raise unanswered(settings.address, error) from None
    try:
        yield
    finally:
        ray.shutdown(wait_for_processes=True)
        if settings.address is None:
            shutil.rmtree(context.address_info["session_dir"], ignore_errors=True)


def unanswered(address: str | None, error: Exception) -> ConfigError:
    """What to say of a Ray that cannot be started or joined."""
    first = str(error).splitlines()[0] if str(error) else type(error).__name__
    asked = first.startswith("Failed to connect") and AUTH not in os.environ
    hint = f"; one that asks for a token needs {AUTH}=token" if asked else ""
    return ConfigError("ray.address", address, f"expected a Ray that answers: {first}{hint}")


def _require_free(port: int) -> None:
    """Ray itself would wait for half a minute, and not say for what."""
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        raise ConfigError(
            "ray.metrics_port", port, f"expected a free port, or null for any: {error.strerror}"
        ) from None


def _require_listener(address: str | None) -> None:
    """OSError when nobody listens there, which Ray takes long to find out."""
    if address is None or address == "auto":
        return
    place = urlsplit(address if address.startswith("ray://") else f"ray://{address}")
    socket.create_connection((place.hostname, place.port), timeout=LISTENER_SECONDS).close()


@contextmanager
def _without_tokens() -> Generator[None, None, None]:
    """What is started inside does not inherit the user's tokens: actors get the one that they need
    with their plan.
    """
    taken = {name: os.environ.pop(name) for name in _TOKENS if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(taken)


def _arguments(settings: RaySettings) -> dict[str, Any]:
    common: dict[str, Any] = {
        "log_to_driver": False,
        "logging_level": "ERROR",
        "namespace": "ray_diloco",
    }
    if settings.address is not None:
        return common | {"address": settings.address}
    return common | {
        "address": "local",  # else Ray joins whichever it finds on this machine
        "num_cpus": settings.num_cpus,
        "object_store_memory": settings.object_store_memory,
        "include_dashboard": settings.include_dashboard,
        "_metrics_export_port": settings.metrics_port,
    }
