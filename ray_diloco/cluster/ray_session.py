"""Ray as a run uses it: started on this machine, or joined where it runs already."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from ray_diloco.cluster.settings import RaySettings
from ray_diloco.errors import ConfigError

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "1",
}

_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


@contextmanager
def ray_session(settings: RaySettings) -> Generator[None, None, None]:
    """Ray, for as long as the context lasts; one that was there already stays as it was.

    ConfigError when there is no Ray at the address.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    import ray  # its import reads the environment

    if ray.is_initialized():
        yield
        return
    try:
        with _without_tokens():
            ray.init(**_arguments(settings))
    except (ConnectionError, ValueError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            "ray.address", settings.address, f"expected a Ray that answers: {first}"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


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
        "num_cpus": settings.num_cpus,
        "object_store_memory": settings.object_store_memory,
        "include_dashboard": settings.include_dashboard,
    }
