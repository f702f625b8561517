"""`hydra/sweeper=optuna`: points that are asked for one after the other, run in the pool."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.utils import setup_globals
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.main import find_user_modules
from ray_diloco.experiment.sweep.composing import Composer
from ray_diloco.experiment.sweep.grid import MULTIRUN
from ray_diloco.experiment.sweep.launcher import (
    SweepPlan,
    earlier_rows,
    read_plan,
    run_proposals,
    sweep_error,
)
from ray_diloco.experiment.sweep.rows import Row
from ray_diloco.experiment.sweep.search_front import print_front
from ray_diloco.experiment.sweep.trials import SEED, Proposal, propose, repeat

try:
    from ray_diloco.experiment.sweep.search import Search
    from ray_diloco.experiment.sweep.search_space import Space, read_space
    from ray_diloco.experiment.sweep.search_study import open_study, wanted
except ModuleNotFoundError as error:
    if error.name != "optuna":
        raise
    raise ConfigError(
        "hydra/sweeper", "optuna", "needs the package optuna: pip install 'ray-diloco[sweep]'"
    ) from None


def search(
    given: Mapping[str, Any], loader: ConfigLoader, master: DictConfig, words: Sequence[str]
) -> None:
    """Run the whole search. ``given``: the launcher's settings. `SweepError` when trials did not
    end well, KeyboardInterrupt when the search was asked to end.
    """
    setup_globals()
    find_user_modules()
    plan, composer = read_plan(given, master), Composer(loader, master)
    plan.search.check(seeds=plan.sweep.seeds)
    plan = replace(plan, sweep=replace(plan.sweep, objective=plan.search.objectives[0]))
    space = read_space(composer.parse(words))
    if SEED in space.searched:
        repeat([[f"{SEED}=0"]], plan.sweep)  # refuses to sweep the seed twice
    mark_seconds = plan.search.mark_seconds(master.run.max_seconds)
    earlier = earlier_rows(plan)
    plan.folder.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(master, plan.folder / MULTIRUN)
    rows = _run(plan, composer, space, earlier, mark_seconds)
    error = sweep_error(rows)
    if error is not None:
        raise error


def _run(
    plan: SweepPlan,
    composer: Composer,
    space: Space,
    earlier: Sequence[Row],
    mark_seconds: float | None,
) -> list[Row | None]:
    """The row that counts of each trial; None of those that never began."""
    points = wanted(plan.search, space)
    found = Search(
        open=partial(open_study, plan.search, space, plan.folder, resume=plan.sweep.resume),
        space=space,
        settings=plan.search,
        propose=partial(trials_of, composer, plan),
        mark_seconds=mark_seconds,
        rows={row.key: row for row in earlier if row.status.settled},
    )
    front = partial(_print_front, plan.search.objectives)
    rows = run_proposals(
        plan,
        found.proposals(),
        earlier,
        total=points * plan.sweep.seeds,
        names=tuple(space.searched),
        follower=found,
        front=front,
    )
    return rows + [None] * (found.left * plan.sweep.seeds)


def trials_of(
    composer: Composer, plan: SweepPlan, words: Sequence[str], number: int
) -> list[Proposal]:
    """Of the point with this number, one for each seed."""
    jobs = repeat([words], plan.sweep)
    return list(propose(composer, jobs, plan.sweep, first=number * plan.sweep.seeds))


def _print_front(objectives: Sequence[str], rows: Sequence[Row], console: Console) -> None:
    if len(objectives) > 1:
        print_front(rows, objectives, console)
