"""`hydra/launcher=ray_pool`: the trials of a sweep side by side, and the answer at the end."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.utils import JobReturn, JobStatus, setup_globals
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.markup import escape

from ray_diloco.cluster.settings import RaySettings
from ray_diloco.errors import ConfigError, SweepError
from ray_diloco.experiment.consoles import PatientConsole
from ray_diloco.experiment.interruption import Interruption
from ray_diloco.experiment.main import find_user_modules
from ray_diloco.experiment.reading import read_config
from ray_diloco.experiment.report.write import report_if_possible
from ray_diloco.experiment.schema import ProgressKind
from ray_diloco.experiment.sweep.answer import print_answer
from ray_diloco.experiment.sweep.arena import Arena
from ray_diloco.experiment.sweep.board import Board, Standing
from ray_diloco.experiment.sweep.composing import Composer
from ray_diloco.experiment.sweep.effects import value_of
from ray_diloco.experiment.sweep.last_words import print_last_words
from ray_diloco.experiment.sweep.objectives import objective_of
from ray_diloco.experiment.sweep.rows import ROWS, Row, RowBook, Status, latest, read_rows
from ray_diloco.experiment.sweep.search_settings import SearchSettings
from ray_diloco.experiment.sweep.session import Session, attempts_of
from ray_diloco.experiment.sweep.settings import LauncherSettings, SweepSettings
from ray_diloco.experiment.sweep.side_by_side import Follower, run_all
from ray_diloco.experiment.sweep.table import TABLE, write_table
from ray_diloco.experiment.sweep.trials import Proposal, propose, repeat
from ray_diloco.timing.wall import WallClock


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """What the command line says of a sweep as a whole."""

    folder: Path
    sweep: SweepSettings
    search: SearchSettings
    launcher: LauncherSettings
    ray: RaySettings
    progress: ProgressKind
    report: bool
    """Draw report.html at the end."""


def launch(
    given: Mapping[str, Any],
    loader: ConfigLoader,
    master: DictConfig,
    jobs: Sequence[Sequence[str]],
    *,
    first: int,
) -> list[JobReturn]:
    """Run all jobs. Each has its `JobReturn`, with the mean of the objective over its seeds; of
    those that did not end well one that failed, with a `SweepError` that speaks of all.
    KeyboardInterrupt when the sweep was asked to end.
    """
    setup_globals()
    find_user_modules()
    plan = read_plan(given, master)
    rows = run_jobs(plan, Composer(loader, master), jobs, first=first)
    error, seeds = sweep_error(rows), plan.sweep.seeds
    groups = [rows[each * seeds : (each + 1) * seeds] for each in range(len(jobs))]
    return [_job_return(group, plan.sweep.objective, error) for group in groups]


def read_plan(given: Mapping[str, Any], master: DictConfig) -> SweepPlan:
    """ConfigError for a setting of the sweep that cannot be used."""
    named: Any = {name: OmegaConf.to_container(master[name], resolve=True) for name in _OF_ALL}
    config = read_config(named)
    config.sweep.check()
    try:
        launcher = LauncherSettings(**given)
    except TypeError as error:
        raise ConfigError("hydra.launcher", dict(given), f"no such setting: {error}") from None
    launcher.check()
    objective = objective_of("sweep.objective", config.sweep.objective)
    objectives = [objective_of("search.objectives", each) for each in config.search.objectives]
    return SweepPlan(
        folder=Path(str(master.hydra.sweep.dir)).absolute(),
        sweep=replace(config.sweep, objective=objective),
        search=replace(config.search, objectives=objectives),
        launcher=launcher,
        ray=config.ray,
        progress=config.run.progress,
        report=config.run.report,
    )


def run_jobs(
    plan: SweepPlan, composer: Composer, jobs: Sequence[Sequence[str]], *, first: int = 0
) -> list[Row | None]:
    """Run what is missing, print the answer, and give the row that counts of each job and seed, in
    their order; None of those that never began. KeyboardInterrupt when it was asked to end.
    """
    repeated = repeat(jobs, plan.sweep)
    proposals = propose(composer, repeated, plan.sweep, first=first)
    total = len(repeated)
    rows = run_proposals(plan, proposals, earlier_rows(plan), total=total, names=_varied(repeated))
    return rows + [None] * (total - len(rows))


def run_proposals(
    plan: SweepPlan,
    proposals: Iterator[Proposal],
    earlier: Sequence[Row],
    *,
    total: int,
    names: tuple[str, ...],
    follower: Follower | None = None,
    front: Callable[[Sequence[Row], Console], None] | None = None,
) -> list[Row | None]:
    """Run what ``earlier`` rows have not settled, print the answer, and give the row that counts of
    each proposal that was asked for. ``names``: the settings that differ between trials. ``front``:
    prints what else there is to say of all rows. KeyboardInterrupt when it was asked to end.
    """
    clock, console = WallClock(), PatientConsole()
    settled = {row.key: row for row in earlier if row.status.settled}
    with ExitStack() as stack:
        book = stack.enter_context(RowBook(plan.folder))
        board = stack.enter_context(closing(Board(plan.progress, console, clock)))
        arena = stack.enter_context(Arena(plan.ray, plan.folder))
        session = Session(
            arena,
            book,
            plan.launcher,
            sweep_dir=plan.folder,
            clock=clock,
            attempts=attempts_of(earlier),
        )
        standing = Standing(total=total, objective=plan.sweep.objective, names=names)
        interruption = stack.enter_context(Interruption())
        keys = run_all(
            session,
            proposals,
            settled,
            standing=standing,
            board=board,
            settings=plan.launcher,
            asked=lambda: interruption.asked,
            follower=follower,
        )
    found = latest(read_rows(plan.folder))
    write_table(found, plan.folder / TABLE)
    if plan.report and (trouble := report_if_possible(plan.folder)):
        console.print(escape(trouble), highlight=False)
    print_answer(found, plan.sweep.objective, plan.sweep.shown, console)
    if front is not None:
        front(found, console)
    print_last_words(found, standing.total, plan.folder, plan.sweep.objective, console)
    if interruption.asked:
        raise KeyboardInterrupt
    by_key = {row.key: row for row in found}
    return [by_key.get(key) for key in keys]


def sweep_error(rows: Sequence[Row | None]) -> SweepError | None:
    """What to say of the trials that did not end well; None when all did."""
    bad = [row for row in rows if row is None or not row.status.settled]
    if not bad:
        return None
    counts = Counter("not started" if row is None else row.status.value for row in bad)
    told = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    only_refused = all(row is not None and row.status is Status.invalid for row in bad)
    return SweepError(
        f"{len(bad)} of {len(rows)} trials did not end well: {told}", refused=only_refused
    )


def _varied(jobs: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The settings that the jobs do not all give alike."""
    every = set(jobs[0]).intersection(*jobs) if jobs else set[str]()
    return tuple(
        dict.fromkeys(
            word.split("=", 1)[0] for words in jobs for word in words if word not in every
        )
    )


def earlier_rows(plan: SweepPlan) -> list[Row]:
    """The rows that count of a sweep that goes on. ConfigError when there is one that is not to."""
    if not (plan.folder / ROWS).exists():
        return []
    rows = latest(read_rows(plan.folder))
    if rows and not plan.sweep.resume:
        raise ConfigError(
            "hydra.sweep.dir", str(plan.folder), "holds a sweep already; sweep.resume=true goes on"
        )
    return rows


def _job_return(rows: Sequence[Row | None], objective: str, error: SweepError | None) -> JobReturn:
    values = [value_of(row, objective) for row in rows if row is not None and row.status.settled]
    known = [value for value in values if value is not None]
    if error is not None and len(values) < len(rows):
        return JobReturn(status=JobStatus.FAILED, _return_value=error)
    return JobReturn(status=JobStatus.COMPLETED, _return_value=fmean(known) if known else None)


_OF_ALL = ("sweep", "search", "ray", "run")
"""Groups that hold for the sweep as a whole."""
