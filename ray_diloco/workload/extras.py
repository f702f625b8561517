"""Packages that only some settings need."""

import importlib
from typing import Any

from ray_diloco.errors import ConfigError


def needed(module: str, setting: str, value: str, *, extra: str) -> Any:
    """The module; ConfigError says which extra to install when it is not there."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise missing(setting, value, error.name or module, extra=extra) from None


def missing(setting: str, value: str, package: str, *, extra: str) -> ConfigError:
    return ConfigError(
        setting, value, f"needs the package {package}: pip install 'ray-diloco[{extra}]'"
    )
