"""From what a sweeper proposes to trials: composed, completed, checked and given a key."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, open_dict

from ray_diloco.errors import ConfigError, RayDilocoError
from ray_diloco.experiment.build import complete
from ray_diloco.experiment.checks import check_config
from ray_diloco.experiment.complaints import complaint
from ray_diloco.experiment.events import as_json
from ray_diloco.experiment.reading import read_config
from ray_diloco.experiment.schema import Config, EngineName, ProgressKind
from ray_diloco.experiment.sweep.composing import Composer, choices_of, settings_of
from ray_diloco.experiment.sweep.identity import key_of
from ray_diloco.experiment.sweep.settings import SweepSettings

SEED = "run.seed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One point of a sweep. ``folder``: the name of its run folder within the sweep's."""

    number: int
    key: str
    config: Config
    words: tuple[str, ...]
    """Its overrides as on a command line."""
    overrides: dict[str, Any]
    choices: dict[str, str]
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """One point whose configuration cannot be used; ``error`` says why, in one line."""

    number: int
    key: str
    overrides: dict[str, Any]
    choices: dict[str, str]
    error: str


Proposal = Trial | Refused


def repeat(jobs: Iterable[Sequence[str]], settings: SweepSettings) -> list[list[str]]:
    """Each job once, or with each of the seeds one after the other. ConfigError when the seed is
    swept already.
    """
    jobs = [list(words) for words in jobs]
    if settings.seeds == 1:
        return jobs
    if any(word.startswith(f"{SEED}=") for words in jobs for word in words):
        raise ConfigError("sweep.seeds", settings.seeds, f"expected 1 where {SEED} is given")
    return [[*words, f"{SEED}={seed}"] for words in jobs for seed in range(settings.seeds)]


def propose(
    composer: Composer, jobs: Iterable[Sequence[str]], settings: SweepSettings, *, first: int = 0
) -> Iterator[Proposal]:
    """A trial or a refusal for each job, made when it is asked for, numbered from ``first``."""
    for number, words in enumerate(jobs, first):
        yield propose_one(composer, words, settings, number)


def propose_one(
    composer: Composer, words: Sequence[str], settings: SweepSettings, number: int
) -> Proposal:
    """The trial, or why it cannot be."""
    overrides = composer.parse(words)
    if not any(each.get_key_element() in ("engine", "engine.name") for each in overrides):
        overrides += composer.parse([f"engine={settings.engine}"])
    told = settings_of(overrides)
    choices: dict[str, str] = {}
    try:
        composed = composer.compose(overrides)
        choices = choices_of(composed)
        config = _fit_for_a_sweep(read_config(_without_hydra(composed)))
        key = key_of(config)
    except Exception as error:
        key = hashlib.sha256(as_json(told).encode()).hexdigest()
        return _refused(error, number=number, key=key, overrides=told, choices=choices)
    try:
        _check(config)
    except RayDilocoError as error:
        return _refused(error, number=number, key=key, overrides=told, choices=choices)
    return Trial(
        number=number,
        key=key,
        config=config,
        words=_words(overrides),
        overrides=told,
        choices=choices,
        folder=_folder(composed, number),
    )


def _fit_for_a_sweep(config: Config) -> Config:
    """Complete, without progress and report of its own. A trial in one process does not take part
    in the Ray that it runs on, so its time is virtual unless something else is real.
    """
    if config.run.preflight or config.run.resumes:
        name = "preflight" if config.run.preflight else "resume"
        raise ConfigError(f"run.{name}", getattr(config.run, name), "expected none in a sweep")
    config.sweep.check()
    config = replace(config, run=replace(config.run, progress=ProgressKind.none, report=False))
    if config.engine.name is EngineName.inproc:
        config = replace(config, ray=replace(config.ray, address=None))
    return complete(config)


def _check(config: Config) -> None:
    """ConfigError for what cannot be used. What is the user's own is tried by the trial's process
    alone: it might end this one.
    """
    if "custom" not in (config.model.name, config.data.name, config.inner.name):
        check_config(config)
        return
    for group in (config.run, config.diloco, config.cluster, config.checkpoint, config.hub):
        group.check()


def _refused(error: Exception, **known: Any) -> Refused:
    found = complaint(error)
    if found is None:
        raise error
    return Refused(error=found[0], **known)


def _without_hydra(composed: DictConfig) -> DictConfig:
    kept = composed.copy()
    with open_dict(kept):
        del kept["hydra"]
    return kept


def _folder(composed: DictConfig, number: int) -> str:
    """``hydra.sweep.subdir`` for this number."""
    with open_dict(composed):
        composed.hydra.job.num = number
        composed.hydra.job.id = str(number)
    return str(composed.hydra.sweep.subdir)


def _words(overrides: Sequence[Override]) -> tuple[str, ...]:
    return tuple(str(each.input_line) for each in overrides if not each.is_hydra_override())
