"""What the reference holds of a model, and its optimizer; no line in common with the product."""

import torch
from torch import nn

State = dict[str, torch.Tensor]


def adamw(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    parameters = list(model.parameters())
    groups = [[p for p in parameters if p.ndim >= 2], [p for p in parameters if p.ndim < 2]]
    decays = [{"params": g, "weight_decay": d} for g, d in zip(groups, (0.1, 0.0)) if g]  # noqa: B905
    fused = all(p.is_floating_point() for p in parameters)
    return torch.optim.AdamW(decays, lr=lr, betas=(0.9, 0.99), eps=1e-8, fused=fused)


def distinct(state: State) -> State:
    """Each storage once, under its first name."""
    seen: set[int] = set()
    return {n: v for n, v in state.items() if not (v.data_ptr() in seen or seen.add(v.data_ptr()))}


def wide(value: torch.Tensor) -> torch.Tensor:
    return value.float() if value.dtype in (torch.bfloat16, torch.float16) else value


def floats(value: torch.Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def is_stepped(name: str) -> bool:
    """Statistics of BatchNorm are no parameters: their values are averaged, not their steps."""
    return not name.endswith(("running_mean", "running_var"))
