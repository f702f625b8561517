"""One run from its configuration to its result."""

import logging
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ray_diloco.cluster.engine import Ending, Engine, View
from ray_diloco.cluster.hub_service import HubAccess
from ray_diloco.cluster.participants import master_name
from ray_diloco.experiment.alone import fastest_alone
from ray_diloco.experiment.build import Plans, build_plans, complete, identify
from ray_diloco.experiment.checks import check_config, check_folders, warnings_of
from ray_diloco.experiment.continuing import check_resume
from ray_diloco.experiment.events import plain
from ray_diloco.experiment.final_model import fetch_if_elsewhere, model_here
from ray_diloco.experiment.folders import held
from ray_diloco.experiment.history import History, Session, read_history
from ray_diloco.experiment.interruption import Interruption
from ray_diloco.experiment.killed import with_ends
from ray_diloco.experiment.launch import OpenStage, Stage, open_stage
from ray_diloco.experiment.lives import NO_CRASH_LOSSES, crash_losses
from ray_diloco.experiment.model_card import publish_card_if_possible
from ray_diloco.experiment.preflight import expectations
from ray_diloco.experiment.progress import NoProgress, Progress
from ray_diloco.experiment.records import Records, evaluation_events, require_free, starting
from ray_diloco.experiment.report.write import report_if_possible
from ray_diloco.experiment.result import Result, environment
from ray_diloco.experiment.run_files import ALONE, STOP
from ray_diloco.experiment.schema import Config, EngineName, Role
from ray_diloco.experiment.session import session_numbers
from ray_diloco.experiment.sessions import told_ranges, whole_run
from ray_diloco.experiment.tracking.opening import tracking
from ray_diloco.hub.settings import HubKind
from ray_diloco.protocol.clock import MICROS_PER_SECOND, Clock
from ray_diloco.protocol.run import RunIdentity
from ray_diloco.timing.wall import WallClock

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
HUB_DIED = "its process died"
NO_HUB = HubAccess(repo_id="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Driven:
    """A run that was driven to its end."""

    ending: Ending
    last: View
    stopped: bool


def run(
    config: Config,
    run_dir: Path,
    *,
    stage: OpenStage = open_stage,
    progress: Progress | None = None,
    overrides: tuple[str, ...] = (),
    wish: Callable[[], str | None] = lambda: None,
) -> Result:
    """Check, launch, follow and record a run. ``overrides``: the command line's, for the record.
    ``wish``: asked now and then; a text asks the run to end early, and says why.

    Errors of `UsageError` and `HubError` come up before any participant starts; what goes wrong
    with a participant later is in the result. KeyboardInterrupt when it was interrupted twice, or
    before it had started.
    """
    clock, progress = WallClock(), progress or NoProgress()
    config, run_dir = complete(config), run_dir.absolute()
    with held("hydra.run.dir", run_dir):
        (run_dir / STOP).unlink(missing_ok=True)
        prepared = _prepare(config, run_dir, clock)
        _tell(prepared, progress)
        numbers = _play(prepared, stage, progress, overrides, wish)
        if config.run.report and (trouble := report_if_possible(run_dir)):
            progress.note(trouble)
    return Result(run_dir=run_dir, status=numbers["status"], numbers=numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """A run that was checked. ``manifest``: the hash of its data. ``clock``: real time since the
    run was asked for.
    """

    config: Config
    run_dir: Path
    identity: RunIdentity
    history: History
    manifest: str
    clock: Clock


def _prepare(config: Config, run_dir: Path, clock: Clock) -> _Prepared:
    require_free(run_dir, resume=config.run.resumes)
    check_folders(config, run_dir)
    history = read_history(run_dir)
    check_resume(config, run_dir, history)
    manifest = check_config(config)
    return _Prepared(
        config=config,
        run_dir=run_dir,
        identity=replace(
            identify(config, run_dir), since=history.ended_at, published=history.published
        ),
        history=history,
        manifest=manifest,
        clock=clock,
    )


def _tell(prepared: _Prepared, progress: Progress) -> None:
    """What is to be known before it starts."""
    config, run_id = prepared.config, prepared.identity.run_id
    progress.note(f"run {run_id or 'of ' + str(config.hub.repo_id)} in {prepared.run_dir}")
    if config.hub.kind is HubKind.huggingface:
        for line in expectations(config):
            progress.note(line)
    for line in warnings_of(config):
        progress.note(f"warning: {line}")
    for line in _awaited_stage(config):
        progress.note(line)


def _play(
    prepared: _Prepared,
    stage: OpenStage,
    progress: Progress,
    overrides: tuple[str, ...],
    wish: Callable[[], str | None],
) -> dict[str, Any]:
    """From the stage to the record; gives the numbers of the result."""
    config, run_dir = prepared.config, prepared.run_dir
    identity, history, clock = prepared.identity, prepared.history, prepared.clock
    with ExitStack() as stack:
        stack.enter_context(starting(run_dir))
        tracker = stack.enter_context(tracking(config, run_dir, run_id=identity.run_id))
        played_on = stack.enter_context(stage(config, identity))
        access = _enter_hub(config, identity, run_dir, played_on)
        plans = build_plans(config, identity, access, run_dir)
        engine = played_on.open_engine(run_dir, log_level=config.run.log_level.value)
        stack.callback(engine.close)
        progress.note(_awaited_participants(config, plans))
        engine.start(plans.nodes, plans.master)
        started = clock.now()
        records = Records(
            run_dir,
            config,
            run_id=identity.run_id,
            clock=clock,
            history=history,
            tracker=tracker,
        )
        stack.callback(records.close)
        driven = _drive(engine, plans, records, progress, wish)
        engine.close()
        session = session_numbers(
            driven.ending,
            driven.last,
            number=len(history.sessions) + 1,
            since=identity.since,
            stopped=driven.stopped,
        )
        session |= {
            "restarts": _restarts(driven.ending, access),
            "wall_seconds": clock.now() / MICROS_PER_SECOND,
            "wall_start_seconds": started / MICROS_PER_SECOND,
            "overrides": list(overrides),
            "versions": environment(),
            "trace_hash": played_on.trace_hash(),
        }
        numbers = _numbers(prepared, access, session, driven.ending, records)
        numbers |= _alone(config, numbers, run_dir, progress)
        for line in fetch_if_elsewhere(config.hub, access, driven.ending, run_dir):
            progress.note(line)
        records.finish(numbers, model=model_here(driven.ending))
        if (told := publish_card_if_possible(config, access, run_dir)) is not None:
            progress.note(told)
    return numbers


def _numbers(
    prepared: _Prepared, access: HubAccess, session: Session, ending: Ending, records: Records
) -> dict[str, Any]:
    """Of the whole run, this session among them."""
    config, identity = prepared.config, prepared.identity
    return plain(
        {
            "run_id": identity.run_id,
            "config_hash": identity.config_hash,
            "role": config.run.role.value,
            "seed": identity.seed,
            "data_manifest": prepared.manifest,
            "repo_id": access.repo_id,
            **_whole_run(config, [*prepared.history.sessions, session], ending, records),
        }
    )


def _enter_hub(config: Config, identity: RunIdentity, run_dir: Path, played_on: Stage) -> HubAccess:
    if config.run.role is Role.single:
        return NO_HUB
    leads = config.run.role is Role.master
    return played_on.open_hub(config.hub, run_id=identity.run_id, leads=leads, run_dir=run_dir)


def _restarts(ending: Ending, access: HubAccess) -> dict[str, list[str]]:
    """By participant, and for the hub, of what each process died that was started again."""
    deaths = access.restarts()
    return ending.restarts | ({"hub": [HUB_DIED] * deaths} if deaths else {})


def _drive(
    engine: Engine,
    plans: Plans,
    records: Records,
    progress: Progress,
    wish: Callable[[], str | None],
) -> Driven:
    """Look until all has ended, and pass on a wish to stop."""
    stopping = False
    with Interruption() as interruption:
        while True:
            view = engine.look(LOOK_SECONDS)
            records.keep(view.events)
            progress.show(view)
            if view.ended:
                break
            reason = _reason_to_stop(view, interruption) or wish()
            if reason is not None and not stopping:
                stopping = True
                progress.note(f"{reason}: stopping and saving; Ctrl-C again to end at once")
                engine.stop(reason)
        ending = engine.finish()
    if ending.master is not None and plans.master is not None:
        records.keep(evaluation_events(ending.master, master_name(plans.master)))
    return Driven(
        ending=ending, last=view, stopped=interruption.asked or (stopping and wish() is not None)
    )


def _reason_to_stop(view: View, interruption: Interruption) -> str | None:
    """A run without its master comes to nothing."""
    if interruption.asked:
        return "interrupted"
    if view.master is not None and view.master.state == "failed":
        return "the master failed"
    return None


def _whole_run(
    config: Config, sessions: list[Session], ending: Ending, records: Records
) -> dict[str, Any]:
    accounts = ending.master.accounts if ending.master is not None else None
    losses, signs = NO_CRASH_LOSSES, ("crashes", "restarts", "failures")
    if any(
        each["status"] == "killed" or any(each.get(name) for name in signs) for each in sessions
    ):
        losses = crash_losses(
            with_ends(records.events(), sessions, records.begun()),
            accounts,
            fragments=config.diloco.fragments,
            told=told_ranges(sessions),
        )
    return whole_run(
        sessions,
        evaluations=records.evaluations,
        rejections=records.rejections,
        crash_losses=losses,
    )


def _alone(
    config: Config, numbers: dict[str, Any], run_dir: Path, progress: Progress
) -> dict[str, Any]:
    """What the fastest node comes to alone, when asked for; not after a run that ended early."""
    if not config.run.alone or numbers["status"] != "done":
        return {}
    progress.note("training the fastest node alone, for as long ...")
    folder = run_dir / ALONE
    shutil.rmtree(folder, ignore_errors=True)
    found = run(fastest_alone(config, numbers["run_seconds"]), folder)
    return {"alone_eval_loss": found.eval_loss}


def _awaited_stage(config: Config) -> list[str]:
    """What may take a while before the participants can be started."""
    if config.engine.name is not EngineName.ray:
        return []
    address = config.ray.address
    return ["starting Ray ..." if address is None else f"joining Ray at {address} ..."]


def _awaited_participants(config: Config, plans: Plans) -> str:
    kind = "actor" if config.engine.name is EngineName.ray else "thread"
    count = len(plans.nodes)
    nodes = f"{count} node {kind}{'s' if count != 1 else ''}" if count else ""
    master = f"the master {kind}" if plans.master is not None else ""
    return f"starting {' and '.join(each for each in (nodes, master) if each)} ..."
