"""Group ``checkpoint``: what a node keeps on its disk to go on from."""

from dataclasses import dataclass

from ray_diloco.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """A node keeps everything that it goes on from with every delta that it sends."""

    every_steps: int | None = None
    """Local steps between further checkpoints, written while the training waits; null: only with
    deltas."""
    keep_last: int = 2
    """How many checkpoints a node keeps; 0: none, and a node that is started again begins anew with
    the newest global."""

    def check(self) -> None:
        """ConfigError for the first setting that cannot be used."""
        if self.every_steps is not None and self.every_steps < 1:
            raise ConfigError(
                "checkpoint.every_steps", self.every_steps, "expected at least 1, or null"
            )
        if self.keep_last < 0:
            raise ConfigError("checkpoint.keep_last", self.keep_last, "expected at least 0")
