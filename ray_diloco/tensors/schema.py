"""What a state consists of: names, shapes, dtypes, ties, and which entries are statistics."""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Protocol

import torch
from torch import nn

from ray_diloco.errors import GlobalError, UsageError
from ray_diloco.tensors.dtypes import METADATA, State, dtype_name, is_floating, promoted

_KEEPS_STATISTICS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
)


class Described(Protocol):
    """Anything with a shape and a dtype: a tensor, an entry, a line of a file's header."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> torch.dtype: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One name of a state. ``tied_to``: the first name that shares its storage, None when it is
    the first itself. ``statistics``: an absolute value such as a running mean, averaged, never
    stepped.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    statistics: bool = False
    tied_to: str | None = None

    @property
    def kind(self) -> Literal["floating", "integer"]:
        """``floating``, complex included, has a pseudo-gradient; ``integer`` includes bool."""
        return "floating" if is_floating(self.dtype) else "integer"

    @property
    def floating(self) -> bool:
        return self.kind == "floating"

    @property
    def numbers(self) -> int:
        """How many real numbers it holds: a complex element counts as two."""
        return math.prod(self.shape) * (2 if self.dtype.is_complex else 1)

    @property
    def number_dtype(self) -> torch.dtype:
        """The dtype of those real numbers."""
        return torch.float32 if self.dtype.is_complex else self.dtype

    @property
    def working_dtype(self) -> torch.dtype:
        """What those numbers are computed in: float64 stays, halves become float32."""
        return promoted(self.number_dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSchema:
    """The entries of a state, in the order of the state."""

    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, module: nn.Module) -> "StateSchema":
        """The schema of a model. UsageError for what cannot be exchanged: entries that are no
        tensors, dtypes that cannot be stored, memory shared in part.
        """
        return cls.of_state(module.state_dict(), statistics=_statistics_names(module))

    @classmethod
    def of_state(cls, state: State, *, statistics: Iterable[str] = ()) -> "StateSchema":
        """The schema of a state dict, with the names of its statistics."""
        absolute = frozenset(statistics)
        for name, tensor in state.items():
            _check_storable(name, tensor)
        ties = _ties(state)
        return cls(
            entries=tuple(
                Entry(
                    name=name,
                    shape=tuple(tensor.shape),
                    dtype=tensor.dtype,
                    statistics=name in absolute and is_floating(tensor.dtype),
                    tied_to=ties.get(name),
                )
                for name, tensor in state.items()
            )
        )

    @classmethod
    def of_described(
        cls, described: Mapping[str, Described], *, statistics: Iterable[str] = ()
    ) -> "StateSchema":
        """The schema of a file's tensors, for who has no module. Ties are unknown, hence none."""
        absolute = frozenset(statistics)
        return cls(
            entries=tuple(
                Entry(
                    name=name,
                    shape=tuple(found.shape),
                    dtype=found.dtype,
                    statistics=name in absolute and is_floating(found.dtype),
                )
                for name, found in described.items()
            )
        )

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    @property
    def floating(self) -> tuple[Entry, ...]:
        """The entries that have a pseudo-gradient, every name of a tie among them."""
        return tuple(entry for entry in self.entries if entry.floating)

    @property
    def distinct(self) -> tuple[Entry, ...]:
        """One entry per storage: the first name of each tie."""
        return tuple(entry for entry in self.entries if entry.tied_to is None)

    @property
    def statistics(self) -> tuple[str, ...]:
        """Names of the statistics."""
        return tuple(entry.name for entry in self.entries if entry.statistics)

    @property
    def fingerprint(self) -> str:
        """sha256 (hex) of names, shapes and dtypes; the order of the entries does not count."""
        lines = sorted(
            [entry.name, dtype_name(entry.dtype), list(entry.shape)] for entry in self.entries
        )
        return hashlib.sha256(json.dumps(lines, separators=(",", ":")).encode()).hexdigest()

    def check(self, found: Mapping[str, Described], *, mismatch: str = "error") -> frozenset[str]:
        """Hold a global state against this schema; dtypes of one kind may differ.

        Gives the names that must keep their local value: none with ``mismatch="error"``, which
        raises GlobalError with all that differs; with ``"ignore"`` those that do not fit.
        """
        wrong = dict(self._mismatches(found))
        if wrong and mismatch != "ignore":
            shown = "; ".join(list(wrong.values())[:5])
            more = f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
            raise GlobalError(f"the global is not of this model: {shown}{more}")
        return frozenset(entry.name for entry in self.entries if entry.name in wrong)

    def _mismatches(self, found: Mapping[str, Described]) -> Iterator[tuple[str, str]]:
        for entry in self.entries:
            if entry.name not in found:
                yield entry.name, f"{entry.name} is missing"
                continue
            other = found[entry.name]
            if tuple(other.shape) != entry.shape:
                yield (
                    entry.name,
                    f"{entry.name} has shape {list(other.shape)}, expected {list(entry.shape)}",
                )
            elif is_floating(other.dtype) != entry.floating or (
                other.dtype.is_complex != entry.dtype.is_complex
            ):
                yield entry.name, f"{entry.name} has dtype {other.dtype}, expected {entry.dtype}"
        known = {entry.name for entry in self.entries}
        for name in found:
            if name not in known:
                yield name, f"{name} is not an entry of the model"


def _statistics_names(module: nn.Module) -> Iterator[str]:
    for path, child in module.named_modules(remove_duplicate=False):
        if isinstance(child, _KEEPS_STATISTICS):
            prefix = f"{path}." if path else ""
            yield f"{prefix}running_mean"
            yield f"{prefix}running_var"


def _check_storable(name: str, tensor: object) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise UsageError(f"{name} is a {type(tensor).__name__}, expected a tensor")
    if name == METADATA:
        raise UsageError(f"{name} is a word of the file format, expected an entry of another name")
    if tensor.layout != torch.strided:
        raise UsageError(f"{name} has layout {tensor.layout}, expected a strided tensor")
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    if any(size > 1 and stride == 0 for size, stride in strides):
        raise UsageError(f"{name} is an expanded view, expected a tensor with memory of its own")
    try:
        dtype_name(tensor.dtype)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None


def _ties(state: State) -> dict[str, str]:
    """Each name that shares all of its memory with an earlier one, and that earlier name.

    UsageError when two entries share a part of their memory: an update in place of one would
    change the other half-way.
    """
    ties: dict[str, str] = {}
    firsts: dict[tuple[object, ...], str] = {}
    for name, tensor in state.items():
        if tensor.numel() == 0 or tensor.is_meta:
            continue
        place = (str(tensor.device), tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if place in firsts:
            ties[name] = firsts[place]
        else:
            firsts[place] = name
    _check_apart({name: state[name] for name in firsts.values()})
    return ties


def _check_apart(state: State) -> None:
    spans = sorted(
        (str(tensor.device), tensor.data_ptr(), tensor.data_ptr() + _extent(tensor), name)
        for name, tensor in state.items()
    )
    for (device, _, stop, name), (next_device, start, _, other) in pairwise(spans):
        if device == next_device and start < stop:
            raise UsageError(
                f"{name} and {other} share a part of their memory, expected all or none"
            )


def _extent(tensor: torch.Tensor) -> int:
    """Bytes from the first to behind the last element."""
    reach = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return (reach + 1) * tensor.element_size()
