"""The command ``ray-diloco``: a Hydra application over ``conf``."""

import logging
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from ray_diloco.errors import RayDilocoError
from ray_diloco.experiment.complaints import FAILURE, complaint
from ray_diloco.experiment.conf_folder import conf_dir
from ray_diloco.experiment.progress import open_progress
from ray_diloco.experiment.reading import mask_tokens, read_config, refuse_token_words
from ray_diloco.experiment.resuming import continued, run_folder
from ray_diloco.experiment.schema import Config, TimeKind
from ray_diloco.experiment.summary import print_summary
from ray_diloco.protocol.run import RunLimits
from ray_diloco.timing.wall import WallClock

INTERRUPTED = 130

logger = logging.getLogger(__name__)


def main() -> None:
    """Run what the command line says; exits with 0, 1 (failed), 2 (wrong use) or 130 (Ctrl-C)."""
    OmegaConf.register_new_resolver("run_folder", run_folder, replace=True)
    find_user_modules()
    codes: list[int] = []

    def job(composed: DictConfig) -> float | None:
        code, eval_loss = _run_job(composed)
        codes.append(code)
        return eval_loss

    with_hydra = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")

    def application() -> None:
        refuse_token_words(sys.argv[1:])
        with_hydra(job)()

    code = _guarded(application, debug="HYDRA_FULL_ERROR" in os.environ)
    sys.exit(max([code, *codes]))


def find_user_modules() -> None:
    """Modules in the working folder can be named by `_target_`; Ray's workers search them too."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))


def follow(
    config: Config, run_dir: Path, *, overrides: tuple[str, ...] = ()
) -> tuple[int, float | None]:
    """Run with progress and summary on the console; gives exit code and final loss."""
    from ray_diloco.experiment.build import complete  # torch and all, which help and typos do
    from ray_diloco.experiment.run import run  # without

    config, console = complete(config), Console()
    if config.run.preflight:
        return _tell_cost(config, run_dir)
    limits = RunLimits(
        max_steps=config.run.max_steps,
        max_seconds=config.run.max_seconds,
        max_tokens=config.run.max_tokens,
    )
    progress = open_progress(
        config.run.progress,
        console,
        limits=limits,
        clock=WallClock(),
        virtual=config.time.kind is TimeKind.virtual,
    )
    try:
        result = run(config, run_dir, progress=progress, overrides=overrides)
    finally:
        progress.close()
    print_summary(result, console)
    return result.exit_code, result.eval_loss


def _tell_cost(config: Config, run_dir: Path) -> tuple[int, float | None]:
    """Check the configuration, print what its exchange will cost, and run nothing."""
    from ray_diloco.experiment.build import complete
    from ray_diloco.experiment.checks import check_config
    from ray_diloco.experiment.preflight import preflight

    config = complete(config)
    check_config(config)
    for line in preflight(config):
        print(line)
    _remove_if_empty(run_dir)
    return 0, None


def report(error: BaseException, *, debug: bool) -> int:
    """Tell the user of an error in one line, and give the exit code. What is our own fault goes to
    the log with its traceback, and with ``debug`` everything is shown with it.
    """
    if isinstance(error, KeyboardInterrupt):
        print("ray-diloco: interrupted", file=sys.stderr)
        return INTERRUPTED
    if debug:
        traceback.print_exception(error)
    line, code = complaint(error) or (f"failed: {type(error).__name__}: {error}", FAILURE)
    print(f"ray-diloco: {mask_tokens(line)}", file=sys.stderr)
    return code


def _run_job(composed: DictConfig) -> tuple[int, float | None]:
    """One run of the command line; in a multirun the next ones go on after an error."""
    settings = HydraConfig.get()
    run_dir = Path(settings.runtime.output_dir)
    debug = bool(composed.run.debug)
    try:
        config = read_config(continued(composed, settings.overrides.task))
        logging.getLogger("ray_diloco").setLevel(config.run.log_level.value)
        overrides = tuple(mask_tokens(str(each)) for each in settings.overrides.task)
        return follow(config, run_dir, overrides=overrides)
    except RayDilocoError as error:
        _remove_if_empty(run_dir)
        return report(error, debug=debug), None
    except Exception as error:
        logger.exception("the run failed")
        print(f"ray-diloco: the traceback is in {run_dir / 'run.log'}", file=sys.stderr)
        return report(error, debug=debug), None


def _guarded(application: Callable[[], object], *, debug: bool) -> int:
    """Call it with Hydra's own printing of errors switched off."""
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        application()
    except (Exception, KeyboardInterrupt) as error:
        return report(error, debug=debug or complaint(error) is None)
    finally:
        if before is None:
            del os.environ["HYDRA_FULL_ERROR"]
    return 0


def _remove_if_empty(run_dir: Path) -> None:
    """A run that never began leaves no folder."""
    if run_dir.is_dir() and not any(run_dir.iterdir()):
        run_dir.rmdir()


if __name__ == "__main__":
    main()
