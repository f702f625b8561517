"""What Optuna remembers of a search: opened anew, or gone on with."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import distribution_to_json
from optuna.exceptions import StorageInternalError
from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import (
    BaseSampler,
    CmaEsSampler,
    NSGAIISampler,
    RandomSampler,
    TPESampler,
)
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.sweep.rows import Status
from ray_diloco.experiment.sweep.search_settings import (
    TRIALS,
    PrunerName,
    SamplerName,
    SearchSettings,
)
from ray_diloco.experiment.sweep.search_space import Space

JOURNAL = "search.journal"
SPACE, NUMBER, STATUS = "space", "number", "status"
"""What is noted of a study, of each of its trials when it begins, and when it ends."""
ENDED = {Status.done, Status.pruned, Status.invalid}
"""Of points that a search that goes on does not try again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """``left``: how many points are to be asked for. ``next_number``: of the next new one."""

    study: optuna.Study
    left: int
    next_number: int


def wanted(settings: SearchSettings, space: Space) -> int:
    """How many points the search has. ConfigError for a grid without an end."""
    if settings.sampler is not SamplerName.grid:
        return settings.trials or TRIALS
    count = len(space.combinations())
    return min(count, settings.trials or count)


def open_study(settings: SearchSettings, space: Space, folder: Path, *, resume: bool) -> Opened:
    """A new study, or the one that the storage holds with what did not end well to be tried again.
    ConfigError for a study that is there and not to be gone on with, or of other lists.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = _load_or_create(settings, folder)
    described = _described(settings, space)
    if SPACE not in study.user_attrs:
        study.set_user_attr(SPACE, described)
    elif not resume:
        raise ConfigError(
            "search.study",
            settings.study,
            "is in the storage already; sweep.resume=true goes on, another name starts anew",
        )
    elif study.user_attrs[SPACE] != described:
        told = "expected the lists and objectives that the search in the storage began with"
        raise ConfigError("search.study", settings.study, told)
    if settings.sampler is SamplerName.grid:
        _queue(study, space.combinations()[: wanted(settings, space)])
    return _gone_on_with(study, wanted(settings, space))


def _queue(study: optuna.Study, points: Sequence[Mapping[str, Any]]) -> None:
    """A crash may have left a part of them there."""
    known = {each.user_attrs.get(NUMBER) for each in study.get_trials(deepcopy=False)}
    for number, point in enumerate(points):
        if number not in known:
            study.enqueue_trial(dict(point), user_attrs={NUMBER: number})


def _gone_on_with(study: optuna.Study, total: int) -> Opened:
    trials = study.get_trials(deepcopy=False)
    for trial in trials:
        if trial.state is TrialState.RUNNING:  # its driver was killed
            study.tell(trial.number, state=TrialState.FAIL)
    for trial in unfinished(trials):
        study.enqueue_trial(trial.params, user_attrs={NUMBER: trial.user_attrs[NUMBER]})
    numbers = [each.user_attrs[NUMBER] for each in trials if NUMBER in each.user_attrs]
    return Opened(
        study=study,
        left=max(total - len(_finished(trials)), 0),
        next_number=max(numbers, default=-1) + 1,
    )


def unfinished(trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    """One trial of each point that was begun, did not end well and does not wait to be tried."""
    trials = list(trials)
    known = _finished(trials) | {
        each.user_attrs[NUMBER]
        for each in trials
        if each.state is TrialState.WAITING and NUMBER in each.user_attrs
    }
    found = {
        each.user_attrs[NUMBER]: each
        for each in trials
        if each.user_attrs.get(NUMBER) is not None and each.user_attrs[NUMBER] not in known
    }
    return [found[number] for number in sorted(found)]


def _finished(trials: Iterable[FrozenTrial]) -> set[int]:
    return {
        each.user_attrs[NUMBER]
        for each in trials
        if each.state.is_finished() and each.user_attrs.get(STATUS) in ENDED
    }


def _load_or_create(settings: SearchSettings, folder: Path) -> optuna.Study:
    try:
        study = optuna.create_study(
            storage=_storage(settings.storage, folder),
            study_name=settings.study,
            pruner=_pruner(settings),
            directions=[StudyDirection.MINIMIZE] * len(settings.objectives),
            load_if_exists=True,
        )
    except (ImportError, ValueError, SQLAlchemyError, StorageInternalError) as error:
        told = " ".join(str(error).split())
        raise ConfigError("search.storage", settings.storage, f"cannot be used: {told}") from None
    study.sampler = _sampler(settings, begun=len(study.get_trials(deepcopy=False)))
    return study


def _storage(given: str | None, folder: Path) -> BaseStorage:
    if given is not None and "://" in given:
        return RDBStorage(given)
    path = folder / JOURNAL if given is None else Path(given).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    return JournalStorage(JournalFileBackend(str(path)))


def _sampler(settings: SearchSettings, *, begun: int) -> BaseSampler:
    """A search that goes on, after ``begun`` trials, must not draw the same numbers again. A grid
    is a queue: nothing is left to be drawn.
    """
    seed = int(np.random.SeedSequence([settings.seed, begun]).generate_state(1)[0])
    match settings.sampler:
        case SamplerName.tpe:
            return TPESampler(seed=seed, constant_liar=True)
        case SamplerName.cmaes:
            if find_spec("cmaes") is None:
                told = "needs the package cmaes: pip install 'ray-diloco[sweep]'"
                raise ConfigError("search.sampler", settings.sampler.value, told)
            return CmaEsSampler(seed=seed, warn_independent_sampling=False)
        case SamplerName.nsga2:
            return NSGAIISampler(seed=seed)
        case SamplerName.random | SamplerName.grid:
            return RandomSampler(seed=seed)


def _pruner(settings: SearchSettings) -> BasePruner:
    match settings.pruner:
        case PrunerName.none:
            return NopPruner()
        case PrunerName.median:
            return MedianPruner(n_startup_trials=settings.prune_after)
        case PrunerName.successive_halving:
            return SuccessiveHalvingPruner(min_resource=1)


def _described(settings: SearchSettings, space: Space) -> dict[str, Any]:
    """As JSON has it, which the storage keeps."""
    lists = {name: json.loads(distribution_to_json(each)) for name, each in space.searched.items()}
    return {"objectives": list(settings.objectives), "lists": lists}
