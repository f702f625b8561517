"""One walk over a model: per piece the mean, the outer step, and the result into both files."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ray_diloco.errors import GlobalError
from ray_diloco.master.aggregation import OpenDelta, PieceBuffers
from ray_diloco.master.outer_optimizer import OuterOptimizer, buffer_names, outer_step
from ray_diloco.master.outer_state import (
    STRINGS,
    OpenGlobal,
    needs_copy,
    own_metadata,
    state_layout,
    text_of,
)
from ray_diloco.master.recipe import Recipe
from ray_diloco.tensors.dtypes import PIECE, STRETCH, pieces
from ray_diloco.tensors.safetensors_writer import (
    SafetensorsWriter,
    WrittenFile,
    copy_with_metadata,
)
from ray_diloco.tensors.schema import Entry, StateSchema

MODEL_NAME = "latest.safetensors"
STATE_NAME = "outer_state.safetensors"
STATISTICS_KEPT = 32
"""Outer steps whose statistics the state remembers; an older base counts as unknown."""

_ROOM = 16384
"""Bytes by which the state's strings may grow in a round without a copy of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """The files of a global, ready to be committed. ``parts``: by fragment, each that changed by
    itself; none where the model is not cut.
    """

    model: WrittenFile
    state: WrittenFile
    parts: Mapping[int, WrittenFile] = field(default_factory=dict[int, WrittenFile])


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
        spare: Path | None,
    ) -> None:
        """``spare``: a folder with the files of an old global, which are written over."""
        self.outer_step = old.outer_step + 1
        self._metadata = own_metadata(schema, {})
        self._room = old.strings_bytes + _ROOM
        known = sorted(old.statistics_steps(schema) | {self.outer_step})
        self.statistics_steps = set(known[-STATISTICS_KEPT:])
        self.model = stack.enter_context(
            SafetensorsWriter(
                folder / MODEL_NAME,
                [(entry.name, entry.dtype, entry.shape) for entry in schema],
                model_metadata,
                over=spare / MODEL_NAME if spare is not None else None,
            )
        )
        self.state = stack.enter_context(
            SafetensorsWriter(
                folder / STATE_NAME,
                [
                    *state_layout(schema, buffer_names(optimizer), self.statistics_steps),
                    (STRINGS, torch.uint8, (self._room,)),
                ],
                self._metadata,
                over=spare / STATE_NAME if spare is not None else None,
            )
        )

    def finish(self, strings: Mapping[str, str]) -> Publication:
        """Store the strings with the state, and complete both files."""
        text = text_of(strings)
        fits = len(text) <= self._room
        padded = bytearray((text if fits else b"{}").ljust(self._room))
        self.state.write(STRINGS, torch.frombuffer(padded, dtype=torch.uint8))
        state = self.state.finish()
        if not fits:
            metadata = {**self._metadata, **strings}
            state = copy_with_metadata(state.path, state.path, metadata, leave_out={STRINGS})
        return Publication(model=self.model.finish(), state=state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The deltas of one fragment, combined by a recipe of their own; all of a round's where the
    model is not cut. Without deltas its entries stay as they are.
    """

    schema: StateSchema
    deltas: Sequence[OpenDelta]
    recipe: Recipe

    def cut(self, entry: Entry) -> Iterator[tuple[int, int]]:
        """Start and stop of what is taken at once; less where all deltas lie beside each other."""
        return pieces(entry.numbers, STRETCH if self.recipe.columns is None else PIECE)


class MergePass:
    """One walk over all entries, in the order of the model file."""

    def __init__(
        self,
        old: OpenGlobal,
        new: NextGlobal,
        optimizer: OuterOptimizer,
        groups: Sequence[Group],
    ) -> None:
        self._old = old
        self._new = new
        self._optimizer = optimizer
        self._places = {entry.name: (entry, group) for group in groups for entry in group.schema}
        self._pieces = PieceBuffers()
        self._kept: dict[tuple[str, torch.dtype], torch.Tensor] = {}

    def run(self) -> None:
        for name in self._new.model.tensors:
            entry, group = self._places[name]
            if not entry.floating:
                self._carry_over(entry)
            elif entry.statistics:
                self._average_statistics(entry, group)
            else:
                self._step(entry, group)

    def _carry_over(self, entry: Entry) -> None:
        """Integer entries: no delta speaks of them."""
        for start, stop in pieces(entry.numbers):
            own = self._old.own_piece(entry, start, stop - start)
            self._new.model.write(entry.name, own, start=start)

    def _step(self, entry: Entry, group: Group) -> None:
        names = buffer_names(self._optimizer)
        for start, stop in group.cut(entry):
            parameter = self._buffer("parameter", entry.working_dtype, stop - start)
            self._old.read_parameter(entry, start, parameter)
            buffers = {
                name: self._buffer(name, entry.working_dtype, stop - start) for name in names
            }
            for name, buffer in buffers.items():
                self._old.read_buffer(name, entry, start, buffer)
            if group.deltas:
                self._move(group, entry, start, parameter, buffers)
            self._write_own(entry, start, parameter)
            for name, buffer in buffers.items():
                self._new.state.write(f"{name}.{entry.name}", buffer, start=start)
            if needs_copy(entry):
                self._new.state.write(f"float32.{entry.name}", parameter, start=start)

    def _move(
        self,
        group: Group,
        entry: Entry,
        start: int,
        parameter: torch.Tensor,
        buffers: dict[str, torch.Tensor],
    ) -> None:
        """One outer step by what the round comes to, or one for each delta as it arrived."""
        deltas, recipe = group.deltas, group.recipe
        optimizer, stop = self._optimizer, start + parameter.numel()
        if not optimizer.by_arrival:
            combined = self._pieces.combined(deltas, recipe, entry, start, stop)
            outer_step(optimizer, parameter, combined.to(parameter.dtype), buffers, recipe.turns[0])
            return
        assert recipe.shares is not None  # arrivals have one each
        for each, share, turn in zip(deltas, recipe.shares, recipe.turns, strict=True):
            delta = self._pieces.share(each, share, entry, start, stop)
            outer_step(optimizer, parameter, delta.to(parameter.dtype), buffers, turn)

    def _average_statistics(self, entry: Entry, group: Group) -> None:
        deltas, recipe = group.deltas, group.recipe
        steps = {each.delta.card.base_outer_step for each in deltas}
        known = {step: self._old.statistics(entry, step) for step in steps}
        bases = [
            known[each.delta.card.base_outer_step] if recipe.counts(place) else None
            for place, each in enumerate(deltas)
        ]
        last = self._old.statistics(entry, self._old.outer_step)
        assert last is not None  # the model has them, whatever the state says
        for start, stop in group.cut(entry):
            value = self._pieces.mean_value(deltas, bases, entry, start, stop, recipe.columns)
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
        """Kept memory for as much as is taken at once."""
        key = (purpose, dtype)
        if key not in self._kept:
            self._kept[key] = torch.empty(STRETCH, dtype=dtype)
        return self._kept[key][:count]
