"""Weights that a model starts from, out of a file."""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import nn

from ray_diloco.errors import ConfigError

SETTING = "model.weights"


def check_weights(path: str, model: nn.Module) -> None:
    """ConfigError unless the file has exactly the entries and shapes of the model, which may be on
    the meta device; reads no more than its header.
    """
    try:
        with safe_open(_file(path), framework="pt") as file:
            found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (OSError, SafetensorError) as error:
        raise ConfigError(SETTING, path, f"expected a safetensors file: {error}") from None
    wanted = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    for name in sorted(wanted.keys() | found.keys()):
        if found.get(name) != wanted.get(name):
            raise ConfigError(
                SETTING,
                path,
                f"expected {name} with shape {wanted.get(name)}, found {found.get(name)}",
            )


@torch.no_grad()
def load_weights(path: str, model: nn.Module) -> None:
    """Into the model, in its own dtypes. ConfigError as `check_weights`."""
    check_weights(path, model)
    model.load_state_dict(load_file(_file(path)))


def _file(path: str) -> Path:
    return Path(path).expanduser()
