"""What a program calls instead of the command line: configure, run, load what was run."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from threading import Lock

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from ray_diloco.errors import ConfigError, UsageError
from ray_diloco.experiment.build import complete
from ray_diloco.experiment.complaints import complaint
from ray_diloco.experiment.conf_folder import conf_dir
from ray_diloco.experiment.following import watched
from ray_diloco.experiment.legible import mapping_of
from ray_diloco.experiment.main import find_user_modules
from ray_diloco.experiment.reading import read_config, refuse_token_words
from ray_diloco.experiment.result import Result
from ray_diloco.experiment.resuming import continued, folder_of
from ray_diloco.experiment.run_files import RESULT
from ray_diloco.experiment.schema import Config, ProgressKind
from ray_diloco.experiment.words import as_meant
from ray_diloco.logs import mask_tokens
from ray_diloco.timing.wall import WallClock

_HYDRA = Lock()
"""Hydra composes for one caller at a time."""


def configure(overrides: Iterable[str] = ()) -> Config:
    """The typed configuration that these words of the command line lead to.

    UsageError, of which ConfigError is one, for what cannot be used, such as a setting that does
    not exist.
    """
    words = as_words(overrides)
    refuse_token_words(words)
    try:
        with _HYDRA, initialize_config_dir(str(conf_dir()), version_base="1.3"):
            composed = compose("config", list(words))
    except (HydraException, OmegaConfBaseException) as error:
        line, _ = complaint(error) or (str(error), None)
        raise UsageError(line) from error
    return read_config(continued(composed, words))


def run(what: Config | Iterable[str] = (), *, folder: str | Path | None = None) -> Result:
    """Train, and give the result when all has ended.

    ``what``: overrides as on the command line (``["experiment=quickstart", "run.seed=1"]``), or a
    configuration. ``folder``: the run folder; None: with ``run.resume=<folder>`` that one, else
    what ``hydra.run.dir`` says, or a new one under ``outputs``. Shows nothing meanwhile, unless
    ``run.progress`` is live or plain.

    Errors of the tree before anything starts; what goes wrong with a participant later is in the
    result, whose ``status`` is then failed.
    """
    find_user_modules()
    words = () if isinstance(what, Config) else as_words(what)
    config = what if isinstance(what, Config) else configure(words)
    if config.run.preflight:
        raise ConfigError("run.preflight", True, "expected false: it is for the command line")
    if config.run.progress is ProgressKind.auto:
        config = replace(config, run=replace(config.run, progress=ProgressKind.none))
    run_dir = folder or folder_of(config.run.resume) or folder_in(words) or new_folder("outputs")
    told = tuple(mask_tokens(word) for word in words)
    return watched(complete(config), Path(run_dir), Console(), overrides=told)


def load_results(folder: str | Path) -> list[Result]:
    """The results of all runs in a folder that have ended: one of a run folder; of a sweep folder
    those of its trials, in their order. ConfigError when there is none.
    """
    root = Path(folder).expanduser()
    found = [root] if (root / RESULT).is_file() else _trial_folders(root)
    if not found:
        expected = f"expected the folder of a run that has ended, or of a sweep of some: {RESULT}"
        raise ConfigError("folder", str(folder), f"{expected} in it or in a folder right below")
    return [_load(each) for each in found]


def _trial_folders(root: Path) -> list[Path]:
    """The run folders right below, those that are numbered in the order of their numbers."""
    folders = [path.parent for path in root.glob(f"*/{RESULT}")]
    return sorted(folders, key=lambda path: (len(path.name), path.name))


def as_words(overrides: Iterable[str]) -> tuple[str, ...]:
    """The words of a command line. ConfigError for one text, whose letters would be words."""
    if isinstance(overrides, str):
        raise ConfigError("overrides", overrides, "expected a list of words")
    return tuple(as_meant(overrides))


def folder_in(words: Iterable[str]) -> Path | None:
    """The run folder that words name, as they do on the command line."""
    pairs = (word.lstrip("+").partition("=") for word in words)
    named = [value for name, _, value in pairs if name == "hydra.run.dir"]
    return Path(named[-1].strip("'\"")).expanduser() if named else None


def new_folder(root: str) -> Path:
    """Below ``root``, named by the time, as the command line names it."""
    day, _, hour = WallClock().utc().partition("T")
    return Path(root, day, hour[:15].replace(":", "-"))


def _load(run_dir: Path) -> Result:
    numbers = mapping_of(run_dir / RESULT, holds="the result of a run", needs={"status": str})
    return Result(run_dir=run_dir.absolute(), status=numbers["status"], numbers=numbers)
