"""Muon for the hidden matrices and AdamW for all else, as one optimizer (MuLoCo, arXiv 2505.23725).

Muon's update of a matrix is its momentum made orthogonal. It is scaled to the size of an AdamW
update (arXiv 2502.16982), so that one learning rate and one decay serve both.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ray_diloco.errors import ConfigError
from ray_diloco.workload.settings import InnerSettings


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """The trainable matrices between two hidden layers: neither embeddings nor an output layer,
    which is known by having as many rows as an embedding.
    """
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    tables = {id(embedding.weight) for embedding in embeddings}
    vocabularies = {embedding.num_embeddings for embedding in embeddings}
    return [
        parameter
        for parameter in model.parameters()
        if parameter.requires_grad
        and parameter.ndim == 2
        and id(parameter) not in tables
        and parameter.shape[0] not in vocabularies
    ]


def build_muon(
    matrices: list[nn.Parameter], rest: torch.optim.Optimizer | None, settings: InnerSettings
) -> torch.optim.Optimizer:
    """``rest``: the optimizer of the other parameters, None when there are none.

    ConfigError when there is nothing for Muon, or torch is too old to have it.
    """
    if not matrices:
        raise ConfigError("inner.name", "muon", "expected a model with hidden matrices")
    if not hasattr(torch.optim, "Muon"):
        raise ConfigError(
            "inner.name", "muon", f"expected torch 2.9 or newer, not {torch.__version__}"
        )
    muon = torch.optim.Muon(
        matrices,
        lr=settings.learning_rate,
        weight_decay=settings.weight_decay,
        momentum=settings.momentum,
        adjust_lr_fn="match_rms_adamw",
    )
    return muon if rest is None else Together([muon, rest])


class Together(torch.optim.Optimizer):
    """Several optimizers that step as one. Their groups are its groups, the very same."""

    def __init__(self, parts: Iterable[torch.optim.Optimizer]) -> None:
        self._parts = list(parts)
        groups = self._groups()
        super().__init__([{"params": group["params"]} for group in groups], {})
        self.param_groups = groups

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step of each; no closure, since each would call it."""
        assert closure is None
        for part in self._parts:
            part.step()

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self._parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part, saved in zip(self._parts, state_dict["parts"], strict=True):
            part.load_state_dict(saved)
        self.param_groups = self._groups()

    def _groups(self) -> list[dict[str, Any]]:
        return [group for part in self._parts for group in part.param_groups]
