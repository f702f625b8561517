"""The files of a published global as the next round reads them, and what the next state holds.

The outer state holds, as tensors: `<buffer>.<name>` for each outer buffer (momentum) of each
parameter, `float32.<name>` for each parameter in half precision, and `statistics.<outer
step>.<name>`, the global's statistics at the last outer steps. The master's strings are its
metadata, or after a round, which knows them only at its end, its last tensor.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch

from ray_diloco.errors import GlobalError
from ray_diloco.tensors.dtypes import PIECE, STRETCH
from ray_diloco.tensors.safetensors_reader import SafetensorsReader, read_header
from ray_diloco.tensors.schema import Entry, StateSchema

STATISTICS_NAMES = "statistics_names"
"""Metadata field of the outer state: a JSON list, since a master has no module to ask."""

STRINGS = "strings"
"""The tensor of bytes that holds the strings of a round: JSON, filled up with spaces. In the header
they would make the whole file's sha256 wait for the end of the round.
"""

PlannedTensor = tuple[str, torch.dtype, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalFiles:
    """A global on disk. ``state`` None: there is none (a peer led so far), momentum begins at 0."""

    model: Path
    state: Path | None
    outer_step: int

    def schema(self) -> StateSchema:
        """What a delta must look like. SafetensorsError or GlobalError for files that are not
        well-formed.
        """
        names = self.state_metadata().get(STATISTICS_NAMES, "[]")
        try:
            statistics = [str(name) for name in json.loads(names)]
        except (ValueError, TypeError):
            raise GlobalError(f"{STATISTICS_NAMES} of the outer state is not a list") from None
        return StateSchema.of_described(read_header(self.model).tensors, statistics=statistics)

    def state_metadata(self) -> Mapping[str, str]:
        """The strings that were stored with the outer state; empty without one. SafetensorsError or
        GlobalError for a file that is not well-formed.
        """
        if self.state is None:
            return {}
        with SafetensorsReader(self.state) as reader:
            return strings_in(reader)


class OpenGlobal:
    """The previous global in the middle of a pass; a context manager that holds two files open."""

    def __init__(self, files: GlobalFiles) -> None:
        self.outer_step = files.outer_step
        self._stack = ExitStack()
        try:
            self._model = self._stack.enter_context(SafetensorsReader(files.model))
            self._state = (
                None
                if files.state is None
                else self._stack.enter_context(SafetensorsReader(files.state))
            )
        except BaseException:
            self._stack.close()
            raise
        self._scratch: dict[torch.dtype, torch.Tensor] = {}

    def __enter__(self) -> "OpenGlobal":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def strings_bytes(self) -> int:
        """How much room the state's strings take."""
        return 0 if self._state is None else len(text_of(strings_in(self._state)))

    def own_piece(self, entry: Entry, start: int, count: int) -> torch.Tensor:
        """Numbers of the model file, in the entry's own dtype; valid until the next call."""
        dtype = entry.number_dtype
        if dtype not in self._scratch:
            self._scratch[dtype] = torch.empty(STRETCH, dtype=dtype)
        scratch = self._scratch[dtype][:count]
        self._model.read_into(entry.name, scratch, start=start)
        return scratch

    def read_parameter(self, entry: Entry, start: int, into: torch.Tensor) -> None:
        """The master's copy: from the state where the model's own dtype is half, else the model."""
        if into.dtype == entry.number_dtype:
            self._model.read_into(entry.name, into, start=start)
        elif not self._read_state(f"float32.{entry.name}", entry, start, into):
            into.copy_(self.own_piece(entry, start, into.numel()))

    def read_buffer(self, buffer: str, entry: Entry, start: int, into: torch.Tensor) -> None:
        """An outer buffer; zeros when the state has none of that name."""
        if not self._read_state(f"{buffer}.{entry.name}", entry, start, into):
            into.zero_()

    def statistics(self, entry: Entry, outer_step: int) -> torch.Tensor | None:
        """The whole entry at an outer step: float32, flat; None when that step is not known."""
        values = torch.empty(entry.numbers)
        if self._read_state(f"statistics.{outer_step}.{entry.name}", entry, 0, values):
            return values
        if outer_step != self.outer_step:
            return None
        for start in range(0, entry.numbers, PIECE):
            part = values[start : start + PIECE]
            part.copy_(self.own_piece(entry, start, part.numel()))
        return values

    def statistics_steps(self, schema: StateSchema) -> set[int]:
        """The outer steps whose statistics are known."""
        if not schema.statistics:
            return set()
        suffix = f".{schema.statistics[0]}"
        names = () if self._state is None else self._state.header.tensors
        known = {
            int(step)
            for name in names
            if name.startswith("statistics.") and name.endswith(suffix)
            if (step := name.removeprefix("statistics.").removesuffix(suffix)).isdecimal()
        }
        return known | {self.outer_step}

    def _read_state(self, key: str, entry: Entry, start: int, into: torch.Tensor) -> bool:
        if self._state is None or key not in self._state.header.tensors:
            return False
        info = self._state.header.tensors[key]
        number_dtype = torch.float32 if info.dtype.is_complex else info.dtype
        if info.shape != entry.shape or number_dtype != into.dtype:
            raise GlobalError(f"the outer state's {key} does not fit the model's {entry.name}")
        self._state.read_into(key, into, start=start)
        return True


def state_layout(
    schema: StateSchema, buffers: tuple[str, ...], statistics_steps: set[int]
) -> Iterator[PlannedTensor]:
    """The tensors of an outer state."""
    for entry in schema.floating:
        if entry.statistics:
            for step in statistics_steps:
                yield f"statistics.{step}.{entry.name}", torch.float32, entry.shape
            continue
        dtype = entry.dtype if entry.dtype.is_complex else entry.working_dtype
        for buffer in buffers:
            yield f"{buffer}.{entry.name}", dtype, entry.shape
        if needs_copy(entry):
            yield f"float32.{entry.name}", torch.float32, entry.shape


def strings_in(state: SafetensorsReader) -> dict[str, str]:
    """The strings of an outer state. GlobalError when they are not strings."""
    if STRINGS not in state.header.tensors:
        return state.header.metadata
    text = bytes(state.read(STRINGS).view(torch.uint8).numpy())
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise GlobalError(f"{STRINGS} of the outer state are not a table of strings")
    return {**state.header.metadata, **found}


def text_of(strings: Mapping[str, str]) -> bytes:
    """Strings as the tensor holds them."""
    return json.dumps(strings).encode()


def needs_copy(entry: Entry) -> bool:
    """Whether the model file alone is too coarse to step from."""
    return entry.floating and not entry.statistics and entry.working_dtype != entry.number_dtype


def own_metadata(schema: StateSchema, metadata: Mapping[str, str]) -> dict[str, str]:
    """The caller's strings and the names of the statistics."""
    return {**metadata, STATISTICS_NAMES: json.dumps(schema.statistics)}
