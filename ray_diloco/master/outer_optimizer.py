"""The outer step: how pseudo-gradients move the master's copy of the parameters.

`nesterov`, `sgd` and `adam` take one step a round, by what the round's deltas combine to.
`delayed_nesterov` and `buffered` take the deltas of a round one after the other, in merge order:
each is an arrival. Everything is elementwise, so that any cut into pieces gives the same bits; each
operation is rounded on its own.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ray_diloco.errors import ConfigError, GlobalError
from ray_diloco.protocol.rules import BY_ARRIVAL, OUTER_NAMES
from ray_diloco.protocol.settings import DilocoSettings
from ray_diloco.protocol.terms import OPTIMIZER

TURN = "outer_turn"
"""Metadata field of the outer state that holds what the outer optimizer counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterOptimizer:
    """Settings of the outer step; defaults of arXiv 2311.08105."""

    name: str = "nesterov"
    lr: float = 0.7
    momentum: float = 0.9
    arrivals: int = 1
    """delayed_nesterov: N, from one momentum update to the next; buffered: K, to one step."""
    c: float = 0.0
    """delayed_nesterov: share of the momentum that each arrival applies, 0 to 1/N."""
    beta2: float = 0.999
    eps: float = 0.1

    @classmethod
    def of(cls, settings: DilocoSettings, *, nodes: int) -> "OuterOptimizer":
        """As the settings say, for a run of so many nodes. ConfigError when it takes as many
        arrivals as there are nodes, and that is 0: nobody knows.
        """
        if settings.outer in BY_ARRIVAL and settings.outer_arrivals is None and not nodes:
            raise ConfigError(
                "diloco.outer_arrivals", None, "expected a number: how many nodes come is not known"
            )
        return cls(
            name=settings.outer,
            lr=settings.outer_lr,
            momentum=settings.outer_momentum,
            arrivals=settings.outer_arrivals or nodes,
            c=settings.outer_c,
            beta2=settings.outer_beta2,
            eps=settings.outer_eps,
        )

    @property
    def label(self) -> str:
        """What the global's metadata call it."""
        return OPTIMIZER if self.name == "nesterov" else self.name

    @property
    def by_arrival(self) -> bool:
        """It takes deltas one by one, not what a round's deltas combine to."""
        return self.name in BY_ARRIVAL

    @property
    def counts(self) -> bool:
        """Its next step depends on how many there were."""
        return self.by_arrival or self.name == "adam"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Which outer step this is, from 1 (adam), or which arrival since the last N-th or K-th.
    ``weight``: of these arrivals together.
    """

    count: int = 0
    weight: float = 0.0

    def next(self, weight: float = 1.0) -> "Turn":
        """The turn after this one, of a delta with this weight."""
        return Turn(count=self.count + 1, weight=self.weight + weight)

    def completes(self, optimizer: OuterOptimizer) -> bool:
        """It is the N-th or K-th arrival, or a later one when there are fewer nodes than before."""
        return optimizer.by_arrival and self.count >= optimizer.arrivals

    def left(self, optimizer: OuterOptimizer) -> "Turn":
        """What the next turn follows, once this one is over."""
        return Turn() if self.completes(optimizer) else self

    def strings(self) -> dict[str, str]:
        """As the outer state keeps it; nothing where nothing was counted."""
        return {TURN: json.dumps([self.count, self.weight])} if self.count else {}

    @classmethod
    def from_strings(cls, strings: Mapping[str, str]) -> "Turn":
        """GlobalError when it is malformed."""
        try:
            count, weight = json.loads(strings.get(TURN, "[0, 0.0]"))
            return cls(count=int(count), weight=float(weight))
        except (ValueError, TypeError):
            raise GlobalError(f"{TURN} of the outer state is not a count and a weight") from None


def buffer_names(optimizer: OuterOptimizer) -> tuple[str, ...]:
    """What the optimizer remembers per parameter between two rounds; all begin as zeros.

    ConfigError for an optimizer that does not exist.
    """
    match optimizer.name:
        case "nesterov":
            return ("momentum",)
        case "sgd":
            return ()
        case "adam":
            return ("first_moment", "second_moment")
        case "delayed_nesterov" | "buffered":
            return ("momentum", "arrived")
        case _:
            raise _unknown(optimizer)


def outer_step(
    optimizer: OuterOptimizer,
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    buffers: dict[str, torch.Tensor],
    turn: Turn | None = None,
) -> None:
    """Move a parameter in place; ``buffers`` as `buffer_names` says.

    ``gradient``: the combined pseudo-gradient of a round, or that of one arrival. ``turn``: of this
    step or arrival; None: the first. All tensors of one shape and dtype: float32 or float64;
    complex entries come as pairs of real numbers.
    """
    turn = turn or Turn().next()
    match optimizer.name:
        case "nesterov":
            _nesterov(parameter, gradient, buffers["momentum"], optimizer)
        case "sgd":
            parameter.add_(gradient.mul(-optimizer.lr))
        case "adam":
            _adam(parameter, gradient, buffers, turn.count, optimizer)
        case "delayed_nesterov":
            _delayed_nesterov(parameter, gradient, buffers, turn, optimizer)
        case "buffered":
            _buffered(parameter, gradient, buffers, turn, optimizer)
        case _:
            raise _unknown(optimizer)


@torch.no_grad()
def _nesterov(
    parameter: torch.Tensor, mean: torch.Tensor, momentum: torch.Tensor, settings: OuterOptimizer
) -> None:
    """``m = b*m + d; p += -lr * (d + b*m)``: `torch.optim.SGD(nesterov=True)` up to rounding."""
    momentum.mul_(settings.momentum).add_(mean)
    step = momentum.mul(settings.momentum).add_(mean)
    parameter.add_(step.mul_(-settings.lr))


@torch.no_grad()
def _adam(
    parameter: torch.Tensor,
    mean: torch.Tensor,
    buffers: dict[str, torch.Tensor],
    count: int,
    settings: OuterOptimizer,
) -> None:
    """`torch.optim.Adam` up to rounding: arXiv 1412.6980, with the eps of arXiv 2311.08105."""
    first, second = buffers["first_moment"], buffers["second_moment"]
    beta1, beta2 = settings.momentum, settings.beta2
    first.mul_(beta1).add_(mean.mul(1 - beta1))
    second.mul_(beta2).add_(mean.mul(mean).mul_(1 - beta2))
    scale = second.div(1 - beta2**count).sqrt_().add_(settings.eps)
    step = first.mul(-settings.lr / (1 - beta1**count)).div_(scale)
    parameter.add_(step)


@torch.no_grad()
def _delayed_nesterov(
    parameter: torch.Tensor,
    delta: torch.Tensor,
    buffers: dict[str, torch.Tensor],
    turn: Turn,
    settings: OuterOptimizer,
) -> None:
    """arXiv 2401.09135, Algorithm 3: each arrival is applied at once, by an N-th; momentum moves
    with every N-th of them. ``arrived``: their sum since it last did.
    """
    momentum, arrived = buffers["momentum"], buffers["arrived"]
    arrived.add_(delta)
    share = settings.c
    if turn.completes(settings):
        momentum.mul_(settings.momentum).add_(arrived.div(settings.arrivals))
        arrived.zero_()
        share = 1 - settings.c * settings.arrivals + settings.c
    step = momentum.mul(share * settings.momentum).add_(delta.div(settings.arrivals))
    parameter.add_(step.mul_(-settings.lr))


@torch.no_grad()
def _buffered(
    parameter: torch.Tensor,
    delta: torch.Tensor,
    buffers: dict[str, torch.Tensor],
    turn: Turn,
    settings: OuterOptimizer,
) -> None:
    """FedBuff (arXiv 2106.06639): every K-th arrival is a Nesterov step on the weighted mean of
    the last K; the others change the buffer alone. ``delta`` has its weight in it.
    """
    arrived = buffers["arrived"]
    arrived.add_(delta)
    if turn.completes(settings):
        _nesterov(parameter, arrived.div(turn.weight), buffers["momentum"], settings)
        arrived.zero_()


def _unknown(optimizer: OuterOptimizer) -> ConfigError:
    return ConfigError("diloco.outer", optimizer.name, f"expected one of {', '.join(OUTER_NAMES)}")
