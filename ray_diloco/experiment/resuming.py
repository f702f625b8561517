"""`run.resume=<run folder>`: the configuration of a run that goes on."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.legible import folder_fault, is_file_in, settings_of
from ray_diloco.experiment.run_files import CONFIG, STARTING

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
    earlier = load_config(folder)
    for word in overrides:
        _require_folder(folder, word)
        _change(earlier, composed, word)
    earlier.run.resume = str(folder)
    return earlier


def load_config(folder: Path) -> DictConfig:
    """What a run's folder says that it was configured with. ConfigError when it holds no run,
    UsageError when that cannot be read.
    """
    if not is_file_in(folder, CONFIG):
        expected = f"{folder_fault(folder)}expected the folder of a run"
        if is_file_in(folder, STARTING):
            expected += "; this one ended while it started: give its command again"
        raise ConfigError("run.resume", str(folder), expected)
    return settings_of(folder / CONFIG, holds="the configuration of a run")


def _require_folder(folder: Path, word: str) -> None:
    """A run goes on where it is; a new folder would begin it anew."""
    key, _, value = word.lstrip("+~").partition("=")
    chosen = Path(value.strip("'\"")).expanduser()
    if key == "hydra.run.dir" and chosen.absolute() != folder.absolute():
        expected = f"expected {folder}, where the run is that goes on, or nothing"
        raise ConfigError("hydra.run.dir", str(chosen), expected)


def _change(earlier: DictConfig, composed: DictConfig, word: str) -> None:
    key = word.split("=", 1)[0].lstrip("+~").split("@")[0]
    if key.startswith("hydra") or key == "run.resume":
        return
    if key in SET_ONCE or (key not in earlier and "." not in key):
        from ray_diloco.experiment.continuing import changeable  # brings torch

        raise ConfigError(
            key,
            word.partition("=")[2],
            f"expected no change of it; on resume may change: {changeable()}",
        )
    value = OmegaConf.select(composed, key)
    OmegaConf.update(earlier, key, value, merge=False, force_add=True)
