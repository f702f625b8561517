"""What goes into a node's checkpoint, and how the node gets it back.

Two kinds of one form: with every upload job, written by its lane before the first request; and
between boundaries, written by the training thread.
"""

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from ray_diloco.node.checkpoint import Checkpoint, CheckpointShelf, Facts, link
from ray_diloco.node.held import Held
from ray_diloco.node.standing import Standing
from ray_diloco.node.training import Training
from ray_diloco.node.weights import Weights

LIVE, BASELINE, SNAPSHOT = "live.safetensors", "baseline.safetensors", "snapshot.safetensors"
TRAINER, DELTA = "trainer.pt", "delta.safetensors"

Keep = Callable[[], None]


class Sender(Protocol):
    """What a checkpoint needs of the exchange."""

    @property
    def run_id(self) -> str: ...

    @property
    def last_number(self) -> int: ...

    @property
    def peer_led(self) -> bool: ...

    @property
    def delta_file(self) -> Path: ...


class Saver:
    """Writes the checkpoints of one incarnation. ``shelf`` None: none are kept."""

    def __init__(
        self,
        shelf: CheckpointShelf | None,
        *,
        every_steps: int | None,
        node_id: str,
        nonce: str,
        first_step: int,
        trainer: Training,
        weights: Weights,
        exchange: Sender,
    ) -> None:
        self._shelf = shelf
        self._every_steps = every_steps
        self._node_id = node_id
        self._nonce = nonce
        self._first_step = first_step
        self._trainer = trainer
        self._weights = weights
        self._exchange = exchange
        self._last_step = -1
        self._held = Held()

    def of_job(self, standing: Standing, *, resets: bool) -> Keep | None:
        """Called right after the snapshot; what it gives is called by the lane when the delta is
        written, while the baseline still stands. ``resets``: the optimizer starts anew, so that
        there is nothing of it to keep.
        """
        shelf = self._shelf
        if shelf is None or standing.job is None:
            return None
        trainer = self._held.hold(_trainer_state(self._trainer, with_optimizer=not resets))
        self._last_step = standing.local_step

        def fill(folder: Path) -> None:
            self._weights.save_snapshot(folder / LIVE)
            self._weights.save_baseline(folder / BASELINE)
            save_tensors(trainer, folder / TRAINER)
            link(self._exchange.delta_file, folder / DELTA)

        return lambda: shelf.save(self._facts(standing, snapshot=LIVE), fill)

    def quiet_steps(self, local_step: int) -> int:
        """How many local steps end, at the least, before the next checkpoint between boundaries; at
        least 1.
        """
        every = self._every_steps
        if self._shelf is None or every is None:
            return sys.maxsize
        return max(1, max(0, self._last_step) + every - local_step)

    def save_when_due(self, standing: Standing) -> bool:
        """On the training thread, between two steps; whether it was written."""
        every = self._every_steps
        if every is None or standing.local_step < max(0, self._last_step) + every:
            return False
        return self.save(standing)

    def save(self, standing: Standing) -> bool:
        """Write one now; False when none are kept, or the newest is of this step."""
        if self._shelf is None or standing.local_step == self._last_step:
            return False
        moves = standing.job is not None and self._weights.snapshot_holds

        def fill(folder: Path) -> None:
            self._weights.save_live(folder / LIVE)
            self._weights.save_baseline(folder / BASELINE)
            save_tensors(_trainer_state(self._trainer, with_optimizer=True), folder / TRAINER)
            if standing.job is not None:
                link(self._exchange.delta_file, folder / DELTA)
            if moves:
                self._weights.save_snapshot(folder / SNAPSHOT)

        self._shelf.save(self._facts(standing, snapshot=SNAPSHOT if moves else None), fill)
        self._last_step = standing.local_step
        return True

    def _facts(self, standing: Standing, *, snapshot: str | None) -> Facts:
        exchange = self._exchange
        job = standing.job
        if job is not None and job.number is None:
            standing = standing.with_number(exchange.last_number)
        return Facts(
            run_id=exchange.run_id,
            node_id=self._node_id,
            nonce=self._nonce,
            first_step=self._first_step,
            schema=self._weights.schema.fingerprint,
            last_number=exchange.last_number,
            peer_led=exchange.peer_led,
            snapshot=snapshot,
            standing=standing,
        )


def save_tensors(state: dict[str, Any], path: Path) -> None:
    """OSError when the disk does not take it, of which `torch.save` makes a RuntimeError."""
    with _Written(path, "wb") as file:
        try:
            torch.save(state, file)
        except RuntimeError:
            if file.fault is not None:
                raise file.fault from None
            raise


class _Written(io.FileIO):
    """Remembers why it could not be written."""

    fault: OSError | None = None

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while rest:
                rest = rest[super().write(rest) :]
        except OSError as error:
            self.fault = error
            raise
        return size


def restore(checkpoint: Checkpoint, *, trainer: Training, weights: Weights) -> None:
    """Put the trainer and the weights where they were."""
    folder, facts = checkpoint.folder, checkpoint.facts
    live = weights.read(folder / LIVE)
    saved = torch.load(folder / TRAINER, map_location="cpu", weights_only=True)
    trainer.load_state_dict(saved | {"model": live})
    snapshot = None if facts.snapshot is None else folder / facts.snapshot
    weights.restore(baseline=folder / BASELINE, snapshot=snapshot)


def _trainer_state(trainer: Training, *, with_optimizer: bool) -> dict[str, Any]:
    """All of its state but the model, which is kept in a form that other programs read."""
    state = {name: value for name, value in trainer.state_dict().items() if name != "model"}
    return state if with_optimizer else state | {"optimizer": None}
