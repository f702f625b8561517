"""One walk over a model: per piece the mean, the outer step, and the result into both files."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from ray_diloco.errors import GlobalError
from ray_diloco.master.aggregation import OpenDelta, PieceBuffers
from ray_diloco.master.outer_optimizer import OuterOptimizer, buffer_names, outer_step
from ray_diloco.master.outer_state import OpenGlobal, needs_copy, own_metadata, state_layout
from ray_diloco.tensors.dtypes import PIECE, pieces
from ray_diloco.tensors.safetensors_writer import SafetensorsWriter, WrittenFile
from ray_diloco.tensors.schema import Entry, StateSchema

MODEL_NAME = "latest.safetensors"
STATE_NAME = "outer_state.safetensors"
STATISTICS_KEPT = 32
"""Outer steps whose statistics the state remembers; an older base counts as unknown."""

_ROOM = 16384
"""Bytes by which the state's metadata may grow in a round without a copy of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """The two files of a global, ready to be committed."""

    model: WrittenFile
    state: WrittenFile


class NextGlobal:
    """The two files that a pass writes; what was not finished leaves nothing behind."""

    def __init__(
        self,
        stack: ExitStack,
        old: OpenGlobal,
        schema: StateSchema,
        optimizer: OuterOptimizer,
        folder: Path,
        model_metadata: Mapping[str, str],
    ) -> None:
        self.outer_step = old.outer_step + 1
        known = sorted(old.statistics_steps(schema) | {self.outer_step})
        self.statistics_steps = set(known[-STATISTICS_KEPT:])
        self.model = stack.enter_context(
            SafetensorsWriter(
                folder / MODEL_NAME,
                [(entry.name, entry.dtype, entry.shape) for entry in schema],
                model_metadata,
            )
        )
        self.state = stack.enter_context(
            SafetensorsWriter(
                folder / STATE_NAME,
                state_layout(schema, buffer_names(optimizer), self.statistics_steps),
                own_metadata(schema, {}),
                room=old.metadata_bytes + _ROOM,
            )
        )

    def finish(self, state_metadata: Mapping[str, str]) -> Publication:
        return Publication(model=self.model.finish(), state=self.state.finish(state_metadata))


class MergePass:
    """One walk over all entries, in the order of the model file."""

    def __init__(
        self,
        old: OpenGlobal,
        new: NextGlobal,
        optimizer: OuterOptimizer,
        schema: StateSchema,
    ) -> None:
        self._old = old
        self._new = new
        self._optimizer = optimizer
        self._entries = {entry.name: entry for entry in schema}
        self._pieces = PieceBuffers()
        self._kept: dict[tuple[str, torch.dtype], torch.Tensor] = {}

    def run(self, deltas: Sequence[OpenDelta]) -> None:
        for name in self._new.model.tensors:
            entry = self._entries[name]
            if not entry.floating:
                self._carry_over(entry)
            elif entry.statistics:
                self._average_statistics(entry, deltas)
            else:
                self._step(entry, deltas)

    def _carry_over(self, entry: Entry) -> None:
        """Integer entries: no delta speaks of them."""
        for start, stop in pieces(entry.numbers):
            own = self._old.own_piece(entry, start, stop - start)
            self._new.model.write(entry.name, own, start=start)

    def _step(self, entry: Entry, deltas: Sequence[OpenDelta]) -> None:
        names = buffer_names(self._optimizer)
        for start, stop in pieces(entry.numbers):
            mean = self._pieces.mean(deltas, entry, start, stop)
            parameter = self._buffer("parameter", entry.working_dtype, stop - start)
            self._old.read_parameter(entry, start, parameter)
            buffers = {
                name: self._buffer(name, entry.working_dtype, stop - start) for name in names
            }
            for name, buffer in buffers.items():
                self._old.read_buffer(name, entry, start, buffer)
            outer_step(self._optimizer, parameter, mean.to(parameter.dtype), buffers)
            self._write_own(entry, start, parameter)
            for name, buffer in buffers.items():
                self._new.state.write(f"{name}.{entry.name}", buffer, start=start)
            if needs_copy(entry):
                self._new.state.write(f"float32.{entry.name}", parameter, start=start)

    def _average_statistics(self, entry: Entry, deltas: Sequence[OpenDelta]) -> None:
        steps = {each.delta.card.base_outer_step for each in deltas}
        known = {step: self._old.statistics(entry, step) for step in steps}
        bases = [known[each.delta.card.base_outer_step] for each in deltas]
        last = self._old.statistics(entry, self._old.outer_step)
        assert last is not None  # the model has them, whatever the state says
        for start, stop in pieces(entry.numbers):
            value = self._pieces.mean_value(deltas, bases, entry, start, stop)
            if value is None:
                value = last[start:stop]
            own = self._write_own(entry, start, value)
            key = f"statistics.{self._new.outer_step}.{entry.name}"
            self._new.state.write(key, own.float(), start=start)
        for step in self._new.statistics_steps - {self._new.outer_step}:
            values = self._old.statistics(entry, step)
            if values is None:
                raise GlobalError(f"the outer state lacks {entry.name} at outer step {step}")
            self._new.state.write(f"statistics.{step}.{entry.name}", values)

    def _write_own(self, entry: Entry, start: int, numbers: torch.Tensor) -> torch.Tensor:
        """Round to the model's own dtype, write, and give what was written."""
        own = numbers
        if numbers.dtype != entry.number_dtype:
            own = self._buffer("own", entry.number_dtype, numbers.numel()).copy_(numbers)
        self._new.model.write(entry.name, own, start=start)
        return own

    def _buffer(self, purpose: str, dtype: torch.dtype, count: int) -> torch.Tensor:
        """Kept memory for one piece."""
        key = (purpose, dtype)
        if key not in self._kept:
            self._kept[key] = torch.empty(PIECE, dtype=dtype)
        return self._kept[key][:count]
