"""The command ``ray-diloco``: a Hydra application over ``conf``."""

import logging
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from ray_diloco.errors import RayDilocoError
from ray_diloco.experiment.complaints import complaint, report
from ray_diloco.experiment.conf_folder import conf_dir
from ray_diloco.experiment.folders import folder_error, remove_if_empty
from ray_diloco.experiment.help_text import group_lines
from ray_diloco.experiment.reading import (
    read_config,
    refuse_token_words,
    require_groups,
)
from ray_diloco.experiment.resuming import continued, run_folder
from ray_diloco.experiment.words import as_meant
from ray_diloco.logs import mask_tokens
from ray_diloco.unread import until_unread

PROGRAM = "ray-diloco"

logger = logging.getLogger(__name__)


def main() -> None:
    """Run what the command line says; exits with 0, 1 (failed), 2 (wrong use) or 130 (Ctrl-C).

    Only a run imports torch and what trains: help, completion and typos are told without.
    """
    OmegaConf.register_new_resolver("run_folder", run_folder, replace=True)
    OmegaConf.register_new_resolver("config_groups", group_lines, replace=True)
    find_user_modules()
    codes: list[int] = []

    def job(composed: DictConfig) -> float | None:
        code, eval_loss = _run_job(composed)
        codes.append(code)
        return eval_loss

    with_hydra = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")

    def application() -> None:
        if "--version" in sys.argv[1:]:  # Hydra would tell its own
            print(f"{PROGRAM} {version('ray-diloco')}")
            return
        refuse_token_words(sys.argv[1:])
        sys.argv[1:] = as_meant(sys.argv[1:])
        try:
            with_hydra(job)()
        except OSError as error:  # Hydra makes the folder; a job keeps its errors to itself
            if error.filename is None:
                raise
            multirun = {"-m", "--multirun"} & set(sys.argv)
            setting = "hydra.sweep.dir" if multirun else "hydra.run.dir"
            raise folder_error(setting, error) from error

    code = _guarded(application, debug="HYDRA_FULL_ERROR" in os.environ)
    sys.exit(max([code, *codes]))


def find_user_modules() -> None:
    """Modules in the working folder can be named by `_target_`; Ray's workers search them too."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))


def _run_job(composed: DictConfig) -> tuple[int, float | None]:
    """One run of the command line; in a multirun the next ones go on after an error."""
    settings = HydraConfig.get()
    run_dir = Path(settings.runtime.output_dir)
    debug = False
    try:
        require_groups(composed)
        debug = bool(composed.run.debug)
        config = read_config(continued(composed, settings.overrides.task))
        logging.getLogger("ray_diloco").setLevel(config.run.log_level.value)
        if config.ray.detach:
            from ray_diloco.experiment.detached import detach

            return detach(run_dir, sys.argv[1:], many=settings.mode is RunMode.MULTIRUN), None
        from ray_diloco.experiment.following import follow

        overrides = tuple(mask_tokens(str(each)) for each in settings.overrides.task)
        return follow(config, run_dir, overrides=overrides)
    except RayDilocoError as error:
        remove_if_empty(run_dir)
        return report(error, program=PROGRAM, debug=debug), None
    except Exception as error:
        logger.exception("the run failed")
        print(f"{PROGRAM}: the traceback is in {run_dir / 'run.log'}", file=sys.stderr)
        return report(error, program=PROGRAM, debug=debug), None


def _guarded(application: Callable[[], object], *, debug: bool) -> int:
    """Call it with Hydra's own printing of errors switched off."""
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        with until_unread():
            application()
    except (Exception, KeyboardInterrupt) as error:
        return report(error, program=PROGRAM, debug=debug or complaint(error) is None)
    finally:
        if before is None:
            del os.environ["HYDRA_FULL_ERROR"]
    return 0


if __name__ == "__main__":
    main()
