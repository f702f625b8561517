"""MLflow: MLFLOW_TRACKING_URI says where to."""

from collections.abc import Iterator, Sequence
from typing import Any

from ray_diloco.experiment.tracking.points import Point
from ray_diloco.experiment.tracking.tracker import End

_ENDS = {"done": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
MOST_PARAMS = 100
"""In one request."""
LONGEST = 500
"""Characters of a parameter that every server takes."""


class MlflowRun:
    """A run under an experiment; the settings are its parameters."""

    def __init__(self, *, project: str, name: str, config: dict[str, Any]) -> None:
        from mlflow import MlflowClient  # pyright: ignore[reportMissingImports] - an extra

        self._client: Any = MlflowClient()
        found = self._client.get_experiment_by_name(project)
        experiment = found.experiment_id if found else self._client.create_experiment(project)
        self._run_id: str = self._earlier(experiment, name) or self._begin(experiment, name, config)

    def _earlier(self, experiment: str, name: str) -> str | None:
        wanted = f"attributes.run_name = '{name}'"
        for run in self._client.search_runs([experiment], wanted, max_results=1):
            self._client.update_run(run.info.run_id, status="RUNNING")
            return run.info.run_id
        return None

    def _begin(self, experiment: str, name: str, config: dict[str, Any]) -> str:
        from mlflow.entities import Param  # pyright: ignore[reportMissingImports] - an extra

        run_id: str = self._client.create_run(experiment, run_name=name).info.run_id
        params = [Param(key, value[:LONGEST]) for key, value in _flat(config)]
        for first in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(run_id, params=params[first : first + MOST_PARAMS])
        return run_id

    def keep(self, points: Sequence[Point]) -> None:
        for point in points:
            self._client.log_metric(self._run_id, point.tag, point.value, step=point.step)

    def end(self, status: End) -> None:
        self._client.set_terminated(self._run_id, _ENDS[status])


def _flat(values: dict[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Each single setting by its dotted name, as text."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", str(value)
