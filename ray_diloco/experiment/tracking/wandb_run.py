"""Weights & Biases: WANDB_API_KEY or ``wandb login``, and WANDB_MODE, say where to and as whom."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ray_diloco.experiment.tracking.points import Point
from ray_diloco.experiment.tracking.tracker import End


class WandbRun:
    """Its files lie in the run folder. Of the machine it gets what its package sends by itself, but
    neither the code around nor the console.
    """

    def __init__(self, *, project: str, name: str, config: dict[str, Any], run_dir: Path) -> None:
        import wandb  # pyright: ignore[reportMissingImports] - an extra

        settings = wandb.Settings(console="off", disable_git=True, disable_code=True)
        self._run: Any = wandb.init(
            project=project,
            id=name,
            name=name,
            resume="allow",
            config=config,
            dir=str(run_dir),
            settings=settings,
        )
        self._known: set[str] = set()

    def keep(self, points: Sequence[Point]) -> None:
        for point in points:
            if point.tag not in self._known:
                self._run.define_metric(point.tag, step_metric=point.axis)
                self._known.add(point.tag)
            self._run.log({point.tag: point.value, point.axis: point.step})

    def end(self, status: End) -> None:
        self._run.finish(exit_code=int(status == "failed"))
