"""What can be said of a model before it is trained: its size, and what its entries are."""

from dataclasses import dataclass, fields, replace
from functools import lru_cache

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ray_diloco.errors import ConfigError
from ray_diloco.workload.models import build_model, sized_model
from ray_diloco.workload.settings import ModelSettings
from ray_diloco.workload.targets import first_line

FLOAT32 = 4
"""Bytes."""

LAYERED = ("gpt", "mlp", "perceptron")
"""Models whose layers, but for the first, are all alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of one copy of the model's ``state_dict``. ``bytes``: as it is stored. ``numbers``: real
    numbers with a pseudo-gradient; a complex element counts as two. ``halves``: those of them that
    are stored in 16 bits, of which the outer loop keeps a float32 copy. ``working_bytes``: of all
    of them in the dtypes that the outer loop computes in.
    """

    bytes: int
    numbers: int
    halves: int
    working_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """``trainable``: some parameter takes gradients. ``complex_entry``: the first entry of complex
    numbers; None without one.
    """

    sizes: Sizes
    trainable: bool
    complex_entry: str | None


@dataclass(frozen=True, slots=True)
class _ByValue:
    settings: ModelSettings

    def __hash__(self) -> int:
        return hash(repr(self.settings))


def outline(settings: ModelSettings) -> Outline:
    """Without memory for the model, unless the user's own constructor needs values: then it is
    built once. ConfigError when it cannot be built.
    """
    return _outline(_ByValue(settings))


def estimate_bytes(settings: ModelSettings) -> int:
    """Bytes of one copy of the model's ``state_dict``.

    A training node holds at least four: weights, gradients and AdamW's two, beside the exchange's
    own copies.
    """
    return outline(settings).sizes.bytes


def unfilled(settings: ModelSettings) -> nn.Module:
    """The model, without memory for its values unless the user's own constructor needs them.
    ConfigError when it cannot be built.
    """
    return _custom_model(settings) if settings.name == "custom" else sized_model(settings)


@lru_cache(maxsize=16)
def _outline(key: _ByValue) -> Outline:
    settings = key.settings
    if settings.name == "custom":
        return _outline_of(_custom_model(settings))
    try:
        if settings.name in LAYERED and (settings.layers or 0) > 2:
            return _by_two_layers(settings)
        return _outline_of(sized_model(settings))
    except (RuntimeError, OverflowError, TypeError) as error:
        raise ConfigError(
            "model.name",
            settings.name,
            f"expected a size that memory can hold: {first_line(error)}",
        ) from error


def _by_two_layers(settings: ModelSettings) -> Outline:
    """Any number of layers from the first and the second."""
    one, two = (_outline_of(sized_model(replace(settings, layers=each))) for each in (1, 2))
    further = (settings.layers or 1) - 1
    least, more = one.sizes, two.sizes
    grown = {
        each.name: (size := getattr(least, each.name)) + further * (getattr(more, each.name) - size)
        for each in fields(Sizes)
    }
    return replace(one, sizes=Sizes(**grown))


def _custom_model(settings: ModelSettings) -> nn.Module:
    try:
        return sized_model(settings)
    except ConfigError:
        raise
    except Exception:  # the user's constructor may read values, which the meta device has not
        return build_model(settings, seed=0)


def _outline_of(model: nn.Module) -> Outline:
    state: dict[str, torch.Tensor] = {}
    for name, value in model.state_dict().items():
        if not isinstance(value, torch.Tensor):
            expected = "expected tensors only: what get_extra_state gives is not exchanged"
            raise ConfigError("model.custom", name, expected)
        if is_lazy(value):
            raise ConfigError("model.custom", name, "expected a model whose sizes are known")
        state[name] = value
    return Outline(
        sizes=_sizes_of(state),
        trainable=any(parameter.requires_grad for parameter in model.parameters()),
        complex_entry=next((name for name, value in state.items() if value.is_complex()), None),
    )


def _sizes_of(state: dict[str, torch.Tensor]) -> Sizes:
    real = [
        torch.view_as_real(value) if value.is_complex() else value
        for value in state.values()
        if value.is_floating_point() or value.is_complex()
    ]
    halves = sum(value.numel() for value in real if value.element_size() < FLOAT32)
    return Sizes(
        bytes=sum(value.nbytes for value in state.values()),
        numbers=sum(value.numel() for value in real),
        halves=halves,
        working_bytes=sum(value.numel() * max(value.element_size(), FLOAT32) for value in real),
    )
