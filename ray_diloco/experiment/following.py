"""A run that is followed on the console: its progress, its summary, or what it would cost."""

from pathlib import Path

from rich.console import Console

from ray_diloco.experiment.build import complete
from ray_diloco.experiment.checks import check_config
from ray_diloco.experiment.consoles import PatientConsole
from ray_diloco.experiment.folders import remove_if_empty
from ray_diloco.experiment.launch import places
from ray_diloco.experiment.live_status import StatusFile
from ray_diloco.experiment.preflight import preflight
from ray_diloco.experiment.progress import open_progress
from ray_diloco.experiment.result import Result
from ray_diloco.experiment.run import run
from ray_diloco.experiment.schema import Config, TimeKind
from ray_diloco.experiment.summary import print_summary
from ray_diloco.protocol.run import RunLimits
from ray_diloco.timing.wall import WallClock


def follow(
    config: Config, run_dir: Path, *, overrides: tuple[str, ...] = ()
) -> tuple[int, float | None]:
    """Run with progress and summary on the console; gives exit code and final loss."""
    config, console = complete(config), PatientConsole()
    if config.run.preflight:
        return _tell_cost(config, run_dir, console)
    result = watched(config, run_dir, console, overrides=overrides)
    print_summary(result, console)
    return result.exit_code, result.eval_loss


def watched(
    config: Config, run_dir: Path, console: Console, *, overrides: tuple[str, ...]
) -> Result:
    """Run a completed configuration and show its progress as it says."""
    limits = RunLimits(
        max_steps=config.run.max_steps,
        max_seconds=config.run.max_seconds,
        max_tokens=config.run.max_tokens,
    )
    clock, virtual = WallClock(), config.time.kind is TimeKind.virtual
    shown = open_progress(config.run.progress, console, limits=limits, clock=clock, virtual=virtual)
    progress = StatusFile(run_dir, shown, limits=limits, virtual=virtual, clock=clock)
    try:
        return run(config, run_dir, progress=progress, overrides=overrides, wish=progress.wish)
    finally:
        progress.close()


def _tell_cost(config: Config, run_dir: Path, console: Console) -> tuple[int, float | None]:
    """Check the configuration, print what its exchange will cost and where its actors would go,
    and run nothing.
    """
    check_config(config)
    for line in [*preflight(config), *(f"machine   {each}" for each in places(config))]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    remove_if_empty(run_dir)
    return 0, None
