"""`hydra/sweeper=grid`: every combination of the values that the command line lists."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig, OmegaConf

from ray_diloco.errors import ConfigError

MULTIRUN = "multirun.yaml"


def sweep(arguments: Sequence[str], launcher: Launcher, config: DictConfig) -> list[Any]:
    """Launch all combinations at once; the first error of a trial comes up when all have ended."""
    jobs = combinations(OverridesParser.create().parse_overrides(list(arguments)))
    sweep_dir = Path(str(config.hydra.sweep.dir))
    sweep_dir.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(config, sweep_dir / MULTIRUN)
    returns: Sequence[JobReturn] = launcher.launch(jobs, initial_job_idx=0)
    for each in returns:
        if each.status is JobStatus.FAILED:
            raise each._return_value
    return [each.return_value for each in returns]


def combinations(overrides: Sequence[Override]) -> list[list[str]]:
    """The overrides of each job; of a setting that is named twice the last one counts. The first
    lists vary slowest. ConfigError for a list that has no end.
    """
    values: dict[str, list[str]] = {}
    for override in overrides:
        key = override.get_key_element()
        if override.is_delete():
            values[key] = [str(override.input_line)]
        elif not override.is_sweep_override():
            values[key] = [f"{key}={override.get_value_element_as_str()}"]
        elif override.is_discrete_sweep():
            values[key] = [f"{key}={each}" for each in override.sweep_string_iterator()]
        else:
            given = str(override.input_line).partition("=")[2]
            raise ConfigError(
                key,
                given,
                "expected values or a range; a grid has no intervals, hydra/sweeper=optuna has",
            )
    return [list(each) for each in itertools.product(*values.values())]
