"""The outer step: how the mean pseudo-gradient moves the master's copy of the parameters."""

from dataclasses import dataclass

import torch

from ray_diloco.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterOptimizer:
    """Settings of the outer step; defaults of arXiv 2311.08105."""

    name: str = "nesterov"
    lr: float = 0.7
    momentum: float = 0.9


def buffer_names(optimizer: OuterOptimizer) -> tuple[str, ...]:
    """What the optimizer remembers per parameter between two rounds; all begin as zeros.

    ConfigError for an optimizer that does not exist.
    """
    match optimizer.name:
        case "nesterov":
            return ("momentum",)
        case _:
            raise ConfigError("diloco.outer.name", optimizer.name, "expected nesterov")


def outer_step(
    optimizer: OuterOptimizer,
    parameter: torch.Tensor,
    mean: torch.Tensor,
    buffers: dict[str, torch.Tensor],
) -> None:
    """Move a parameter by the mean pseudo-gradient, in place; ``buffers`` as `buffer_names` says.

    All of one shape and dtype: float32 or float64, or complex. Elementwise, so that any cut into
    pieces gives the same bits; each operation is rounded on its own.
    """
    match optimizer.name:
        case "nesterov":
            _nesterov(parameter, mean, buffers["momentum"], optimizer)
        case _:
            raise ConfigError("diloco.outer.name", optimizer.name, "expected nesterov")


@torch.no_grad()
def _nesterov(
    parameter: torch.Tensor, mean: torch.Tensor, momentum: torch.Tensor, settings: OuterOptimizer
) -> None:
    """``m = b*m + d; p += -lr * (d + b*m)``: `torch.optim.SGD(nesterov=True)` up to rounding."""
    momentum.mul_(settings.momentum).add_(mean)
    step = momentum.mul(settings.momentum).add_(mean)
    parameter.add_(step.mul_(-settings.lr))
