"""Group ``tracking``: which service gets the curves, beside the run's own TensorBoard files."""

import importlib.util
from dataclasses import dataclass
from enum import StrEnum

from ray_diloco.errors import ConfigError
from ray_diloco.workload.extras import missing


class TrackerName(StrEnum):
    """Whose package gets the curves; also the name of the extra that brings it."""

    none = "none"
    wandb = "wandb"
    mlflow = "mlflow"
    trackio = "trackio"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingSettings:
    """Where a service is, and as whom one is there, its own environment variables say."""

    name: TrackerName = TrackerName.none
    """none, wandb, mlflow or trackio: who gets losses, staleness, tokens, and the final numbers."""
    project: str = "ray_diloco"
    """Under which the run is kept there (mlflow: the experiment)."""

    def check(self) -> None:
        """ConfigError for a name that is empty, and for a package that is not installed."""
        if not self.project.strip():
            raise ConfigError("tracking.project", self.project, "expected a name")
        package = self.name.value
        if self.name is not TrackerName.none and importlib.util.find_spec(package) is None:
            raise missing("tracking.name", package, package, extra=package)
