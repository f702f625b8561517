"""From the settings to a tracker that has begun."""

import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.reading import to_plain
from ray_diloco.experiment.run_files import TRACKED_AS
from ray_diloco.experiment.schema import Config
from ray_diloco.experiment.tracking.mlflow_run import MlflowRun
from ray_diloco.experiment.tracking.settings import TrackerName
from ray_diloco.experiment.tracking.tracker import Beside, Tracker
from ray_diloco.experiment.tracking.trackio_run import TrackioRun
from ray_diloco.experiment.tracking.wandb_run import WandbRun
from ray_diloco.logs import mask_tokens

SUFFIX_BYTES = 3


@contextmanager
def tracking(config: Config, run_dir: Path, *, run_id: str) -> Generator[Beside | None, None, None]:
    """The tracker that the settings ask for; without an end of its own the run failed. None when
    they ask for none. ConfigError when its service cannot be reached, or does not know the user.
    """
    service = config.tracking.name
    if service is TrackerName.none:
        yield None
        return
    name = _name_of(run_dir, run_id or config.run.name)
    try:
        begun = _begin(config, name, run_dir)
    except Exception as error:  # whatever the package throws
        told = mask_tokens(" ".join(str(error).split())) or type(error).__name__
        expected = f"expected a service that takes the run: {told}"
        raise ConfigError("tracking.name", service.value, expected) from None
    tracker = Beside(begun, name=service.value)
    try:
        yield tracker
    finally:
        tracker.end("failed")


def _begin(config: Config, name: str, run_dir: Path) -> Tracker:
    project, settings = config.tracking.project, to_plain(config)
    match config.tracking.name:
        case TrackerName.wandb:
            return WandbRun(project=project, name=name, config=settings, run_dir=run_dir)
        case TrackerName.mlflow:
            return MlflowRun(project=project, name=name, config=settings)
        case _:
            return TrackioRun(project=project, name=name, config=settings)


def _name_of(run_dir: Path, run_id: str) -> str:
    """What the run is called there: unlike any other, since simulated runs in two folders may have
    one id, and the same when it goes on.
    """
    file = run_dir / TRACKED_AS
    kept = file.read_text(encoding="utf-8").strip() if file.is_file() else ""
    if not kept:
        kept = f"{run_id}-{secrets.token_hex(SUFFIX_BYTES)}"
        run_dir.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{kept}\n", encoding="utf-8")
    return kept
