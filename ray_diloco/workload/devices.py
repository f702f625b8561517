"""Devices by name."""

import torch

from ray_diloco.errors import ConfigError


def resolve_device(name: str, *, setting: str = "run.device") -> torch.device:
    """``auto`` (cuda, else mps, else cpu), ``cpu``, ``mps``, ``cuda`` or ``cuda:<index>``.

    ConfigError names ``setting`` when there is no such device on this machine.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(
            setting, name, "unknown device; expected auto, cpu, mps, cuda or cuda:<index>"
        ) from None
    if not _is_there(device):
        raise ConfigError(setting, name, "no such device on this machine")
    return device


def _is_there(device: torch.device) -> bool:
    match device.type:
        case "cpu":
            return True
        case "cuda":
            return (device.index or 0) < torch.cuda.device_count()
        case "mps":
            return torch.backends.mps.is_available()
        case _:
            return False
