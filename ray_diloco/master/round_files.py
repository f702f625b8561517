"""A round as one stream: deltas and the previous global in, the next global's two files out.

Per piece: the mean, the outer step, and the result into both files, so that a round's memory is a
few pieces and the statistics, whatever the model and the number of deltas. A delta that turns out
bad costs one more pass without it; nothing of a pass that had one is kept.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from ray_diloco.errors import DeltaError, GlobalError
from ray_diloco.master.aggregation import FetchedDelta, OpenDelta, PieceBuffers, in_merge_order
from ray_diloco.master.outer_optimizer import OuterOptimizer, buffer_names, outer_step
from ray_diloco.master.outer_state import (
    GlobalFiles,
    OpenGlobal,
    needs_copy,
    own_metadata,
    state_layout,
)
from ray_diloco.master.validation import NormLimits, check_values
from ray_diloco.tensors.delta_file import DeltaReader
from ray_diloco.tensors.dtypes import PIECE, State, pieces
from ray_diloco.tensors.safetensors_writer import (
    SafetensorsWriter,
    WrittenFile,
    copy_with_metadata,
    write_state,
)
from ray_diloco.tensors.schema import Entry, StateSchema

MODEL_NAME = "latest.safetensors"
STATE_NAME = "outer_state.safetensors"
STATISTICS_KEPT = 32
"""Outer steps whose statistics the state remembers; an older base counts as unknown."""

_ROOM = 16384
"""Bytes by which the state's metadata may grow in a round without a copy of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """What came of each delta. ``norms`` belong to ``merged``, both in merge order. ``zero``: a
    peer's deltas without any change, dropped from the count.
    """

    merged: tuple[FetchedDelta, ...]
    norms: tuple[float, ...]
    rejected: tuple[tuple[FetchedDelta, DeltaError], ...]
    zero: tuple[FetchedDelta, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """The two files of a global, ready to be committed."""

    model: WrittenFile
    state: WrittenFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A finished round. ``publication`` None: no delta was left to merge, the global stays."""

    merge: Merge
    publication: Publication | None


DescribeState = Callable[[Merge], Mapping[str, str]]
"""The strings to store with the outer state, once it is known what was merged."""


@torch.no_grad()
def aggregate_and_step(
    deltas: Sequence[FetchedDelta],
    *,
    previous: GlobalFiles,
    schema: StateSchema,
    optimizer: OuterOptimizer,
    limits: NormLimits,
    folder: Path,
    model_metadata: Mapping[str, str],
    describe_state: DescribeState,
) -> Round:
    """Merge deltas that `check_file` accepted into the files of outer step
    ``previous.outer_step + 1``.

    ``folder`` gets `latest.safetensors` and `outer_state.safetensors`; the previous files may lie
    in it, and stay readable until a pass succeeded. Holds one open file per delta.
    """
    counted = in_merge_order(deltas)
    rejected: list[tuple[FetchedDelta, DeltaError]] = []
    zero: list[FetchedDelta] = []
    while counted:
        with ExitStack() as stack:
            opened = _open(counted, schema, stack)
            old = stack.enter_context(OpenGlobal(previous))
            new = _NextGlobal(stack, old, schema, optimizer, folder, model_metadata)
            _Pass(old, new, optimizer, schema).run(opened)
            bad, empty = _judge(opened, limits)
            if not bad and not empty:
                merge = Merge(
                    merged=counted,
                    norms=tuple(each.tally.norm for each in opened),
                    rejected=tuple(rejected),
                    zero=tuple(zero),
                )
                metadata = own_metadata(schema, describe_state(merge))
                return Round(merge=merge, publication=new.finish(metadata))
        rejected += bad
        zero += empty
        gone = {delta.path for delta, _ in bad} | {delta.path for delta in empty}
        counted = tuple(delta for delta in counted if delta.path not in gone)
    merge = Merge(merged=(), norms=(), rejected=tuple(rejected), zero=tuple(zero))
    return Round(merge=merge, publication=None)


def write_first_global(
    state: State,
    *,
    schema: StateSchema,
    optimizer: OuterOptimizer,
    folder: Path,
    model_metadata: Mapping[str, str],
    state_metadata: Mapping[str, str],
) -> Publication:
    """The files of outer step 0, from a model's state: outer buffers are zeros."""
    model = write_state(folder / MODEL_NAME, state, model_metadata)
    files = GlobalFiles(model=model.path, state=None, outer_step=0)
    written = write_fresh_state(
        files, schema=schema, optimizer=optimizer, folder=folder, metadata=state_metadata
    )
    return Publication(model=model, state=written)


@torch.no_grad()
def write_fresh_state(
    files: GlobalFiles,
    *,
    schema: StateSchema,
    optimizer: OuterOptimizer,
    folder: Path,
    metadata: Mapping[str, str],
) -> WrittenFile:
    """An outer state for a global that has none: zero buffers, the model's own values."""
    buffers = buffer_names(optimizer)
    planned = state_layout(schema, buffers, {files.outer_step})
    complete = own_metadata(schema, metadata)
    with (
        OpenGlobal(files) as old,
        SafetensorsWriter(folder / STATE_NAME, planned, complete) as writer,
    ):
        for entry in schema.floating:
            if entry.statistics:
                values = old.statistics(entry, files.outer_step)
                assert values is not None
                writer.write(f"statistics.{files.outer_step}.{entry.name}", values)
                continue
            for start, stop in pieces(entry.numbers):
                numbers = torch.zeros(stop - start, dtype=entry.working_dtype)
                for buffer in buffers:
                    writer.write(f"{buffer}.{entry.name}", numbers, start=start)
                if needs_copy(entry):
                    old.read_parameter(entry, start, numbers)
                    writer.write(f"float32.{entry.name}", numbers, start=start)
        return writer.finish()


def restate(
    files: GlobalFiles, *, schema: StateSchema, folder: Path, metadata: Mapping[str, str]
) -> WrittenFile:
    """The same outer state with other strings, for a publication with unchanged weights."""
    assert files.state is not None, "there is no outer state to write again"
    return copy_with_metadata(files.state, folder / STATE_NAME, own_metadata(schema, metadata))


def _open(
    deltas: Sequence[FetchedDelta], schema: StateSchema, stack: ExitStack
) -> tuple[OpenDelta, ...]:
    return tuple(
        OpenDelta(
            delta,
            stack.enter_context(
                DeltaReader(delta.file, schema=schema, codec=delta.card.codec, path=delta.path)
            ),
        )
        for delta in deltas
    )


def _judge(
    opened: Sequence[OpenDelta], limits: NormLimits
) -> tuple[list[tuple[FetchedDelta, DeltaError]], list[FetchedDelta]]:
    bad: list[tuple[FetchedDelta, DeltaError]] = []
    empty: list[FetchedDelta] = []
    for each in opened:
        try:
            check_values(each.tally, path=each.delta.path, limits=limits)
        except DeltaError as error:
            bad.append((each.delta, error))
            continue
        if each.tally.zero and each.delta.from_peer:
            empty.append(each.delta)
    return bad, empty


class _NextGlobal:
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


class _Pass:
    """One walk over all entries, in the order of the model file."""

    def __init__(
        self,
        old: OpenGlobal,
        new: _NextGlobal,
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
        for start, stop in pieces(entry.numbers):
            value = self._pieces.mean_value(deltas, bases, entry, start, stop)
            if value is None:
                value = self._old.own_piece(entry, start, stop - start)
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
