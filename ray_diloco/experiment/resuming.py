"""`run.resume=<run folder>`: the configuration of a run that goes on."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.build import CONFIG_FILE

SET_ONCE = ("run.run_id", "run.name", "run.seed")
"""What makes the run that it is."""


def run_folder(resume: Any, otherwise: str) -> str:
    """The folder that a run writes to: that of the run that goes on, else the other one."""
    folder = folder_of(resume)
    return otherwise if folder is None else str(folder)


def folder_of(resume: Any) -> Path | None:
    """The run folder that the setting ``run.resume`` names; None when it names none."""
    if resume is None or str(resume).lower() in ("true", "false", "none", "null"):
        return None
    return Path(str(resume)).expanduser()


def continued(composed: DictConfig, overrides: Iterable[str]) -> DictConfig:
    """What the folder's run was configured with, changed by what the command line says; the
    composed configuration as it is when no folder is named.

    ``overrides``: the command line's words. ConfigError when the folder holds no run, and for what
    cannot be changed.
    """
    folder = folder_of(composed.run.resume)
    if folder is None:
        return composed
    try:
        earlier = OmegaConf.load(folder / CONFIG_FILE)
    except (OSError, OmegaConfBaseException):
        raise ConfigError("run.resume", str(folder), "expected the folder of a run") from None
    assert isinstance(earlier, DictConfig)
    for word in overrides:
        _change(earlier, composed, word)
    earlier.run.resume = str(folder)
    return earlier


def _change(earlier: DictConfig, composed: DictConfig, word: str) -> None:
    key = word.split("=", 1)[0].lstrip("+~").split("@")[0]
    if key.startswith("hydra") or key == "run.resume":
        return
    if key in SET_ONCE or (key not in earlier and "." not in key):
        raise ConfigError("run.resume", word, "expected settings of the run that can change")
    value = OmegaConf.select(composed, key)
    OmegaConf.update(earlier, key, value, merge=False, force_add=True)
