"""AdamW without torch's compiler, which torch's optimizers load on their first use although nothing
is compiled: 1.5 s of CPU and 70 MB in every process that trains.

Each piece is torch's own; where torch has changed so that this no longer works, it is only slow.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch

_SHIELDED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
"""Methods of an optimizer that torch shields from its compiler, loading it to do so."""


class EagerAdamW(torch.optim.AdamW):
    """torch's AdamW to the last bit. Its step is not to be traced."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        unshield()
        super().__init__(*args, **keywords)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step; as torch's, without what only a differentiable step needs."""
        return _plain_step(self, closure)


def unshield() -> None:
    """Mark those methods as shielded already. Idempotent; holds for all optimizers."""
    for name in _SHIELDED:
        plain: Any = inspect.unwrap(getattr(torch.optim.Optimizer, name))
        if not hasattr(plain, "__dynamo_disable"):
            plain.__dynamo_disable = plain


_plain_step: Callable[..., Any] = inspect.unwrap(torch.optim.Adam.step)
