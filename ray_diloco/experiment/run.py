"""One run from its configuration to its result."""

import logging
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray_diloco.cluster.engine import Ending, Engine, View
from ray_diloco.cluster.hub_service import HubAccess
from ray_diloco.cluster.participants import master_name
from ray_diloco.experiment.build import Plans, build_plans, complete, identify
from ray_diloco.experiment.checks import check_config, warnings_of
from ray_diloco.experiment.interruption import Interruption
from ray_diloco.experiment.launch import OpenStage, Stage, open_stage
from ray_diloco.experiment.preflight import expectations
from ray_diloco.experiment.progress import NoProgress, Progress
from ray_diloco.experiment.records import Records, evaluation_events, require_free
from ray_diloco.experiment.result import Losses, Result, environment, losses_of, summarise
from ray_diloco.experiment.schema import Config, Role
from ray_diloco.hub.settings import HubKind
from ray_diloco.protocol.clock import MICROS_PER_SECOND, Clock
from ray_diloco.protocol.run import MasterReport, RunIdentity
from ray_diloco.timing.wall import WallClock

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
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
) -> Result:
    """Check, launch, follow and record a run. ``overrides``: the command line's, for the record.

    Errors of `UsageError` and `HubError` come up before any participant starts; what goes wrong
    with a participant later is in the result. KeyboardInterrupt when it was interrupted twice, or
    before it had started.
    """
    clock, progress = WallClock(), progress or NoProgress()
    config, run_dir = complete(config), run_dir.absolute()
    require_free(run_dir, resume=config.run.resumes)
    manifest = check_config(config)
    identity = identify(config, run_dir)
    progress.note(f"run {identity.run_id or 'of ' + str(config.hub.repo_id)} in {run_dir}")
    if config.hub.kind is HubKind.huggingface:
        for line in expectations(config):
            progress.note(line)
    for line in warnings_of(config):
        progress.note(f"warning: {line}")
    with ExitStack() as stack:
        played_on = stack.enter_context(stage(config, identity))
        access = _enter_hub(config, identity, run_dir, played_on)
        records = Records(run_dir, config, run_id=identity.run_id, clock=clock)
        stack.callback(records.close)
        plans = build_plans(config, identity, access, run_dir)
        engine = played_on.open_engine(run_dir, log_level=config.run.log_level.value)
        stack.callback(engine.close)
        driven = _drive(engine, plans, records, progress)
        engine.close()
        losses, model = _learned(driven.ending, records)
        numbers = summarise(
            config,
            identity,
            ending=driven.ending,
            last=driven.last,
            losses=losses,
            stopped=driven.stopped,
        )
        numbers |= _circumstances(clock, overrides, manifest=manifest, repo_id=access.repo_id)
        numbers["trace_hash"] = played_on.trace_hash()
        records.finish(numbers, model=model)
    return Result(run_dir=run_dir, status=numbers["status"], numbers=numbers)


def _enter_hub(config: Config, identity: RunIdentity, run_dir: Path, played_on: Stage) -> HubAccess:
    if config.run.role is Role.single:
        return NO_HUB
    leads = config.run.role is Role.master
    return played_on.open_hub(config.hub, run_id=identity.run_id, leads=leads, run_dir=run_dir)


def _drive(engine: Engine, plans: Plans, records: Records, progress: Progress) -> Driven:
    """Start, look until all has ended, and pass on a wish to stop."""
    engine.start(plans.nodes, plans.master)
    stopping = False
    with Interruption() as interruption:
        while True:
            view = engine.look(LOOK_SECONDS)
            records.keep(view.events)
            progress.show(view)
            if view.ended:
                break
            reason = _reason_to_stop(view, interruption)
            if reason is not None and not stopping:
                stopping = True
                progress.note(f"{reason}: stopping and saving; Ctrl-C again to end at once")
                engine.stop(reason)
        ending = engine.finish()
    if ending.master is not None and plans.master is not None:
        records.keep(evaluation_events(ending.master, master_name(plans.master)))
    return Driven(ending=ending, last=view, stopped=interruption.asked)


def _reason_to_stop(view: View, interruption: Interruption) -> str | None:
    """A run without its master comes to nothing."""
    if interruption.asked:
        return "interrupted"
    if view.master is not None and view.master.state == "failed":
        return "the master failed"
    return None


def _learned(ending: Ending, records: Records) -> tuple[Losses, Path | None]:
    """The losses before and after, and the file of the final model, if there is one here. A node of
    role single has its own, and tells its losses as events.
    """
    if ending.master is not None:
        return losses_of(ending.master), _file(ending.master)
    told = [each["loss"] for each in records.evaluations]
    losses = Losses(initial=told[0], final=told[-1]) if len(told) > 1 else Losses()
    models = [Path(node.model_file) for node in ending.nodes if node.model_file is not None]
    return losses, models[0] if models else None


def _file(master: MasterReport) -> Path | None:
    """None for a standby that was never needed."""
    return Path(master.model_file) if master.model_file else None


def _circumstances(
    clock: Clock, overrides: tuple[str, ...], *, manifest: str, repo_id: str
) -> dict[str, Any]:
    return {
        "wall_seconds": clock.now() / MICROS_PER_SECOND,
        "data_manifest": manifest,
        "repo_id": repo_id,
        "overrides": list(overrides),
        "versions": environment(),
    }
