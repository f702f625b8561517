"""trackio: a local database (TRACKIO_DIR), or a Space on huggingface.co (TRACKIO_SPACE_ID)."""

from collections.abc import Sequence
from typing import Any

from ray_diloco.experiment.tracking.points import Point
from ray_diloco.experiment.tracking.tracker import End


class TrackioRun:
    """A Space that is made for it is private. How a run ended is not kept there."""

    def __init__(self, *, project: str, name: str, config: dict[str, Any]) -> None:
        import trackio  # pyright: ignore[reportMissingImports] - an extra

        self._run: Any = trackio.init(
            project,
            name,
            config=config,
            resume="allow",
            private=True,
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )

    def keep(self, points: Sequence[Point]) -> None:
        for point in points:
            self._run.log({point.tag: point.value}, step=point.step)

    def end(self, status: End) -> None:  # noqa: ARG002 - it has no place for it
        self._run.finish()
