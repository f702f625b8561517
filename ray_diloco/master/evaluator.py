"""The held-out loss of a global, from its file."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from ray_diloco.tensors.safetensors_reader import SafetensorsReader


class Evaluator:
    """A model of its own and how it is measured; one call at a time."""

    def __init__(self, model: nn.Module, measure: Callable[[nn.Module], float]) -> None:
        """``measure``: mean held-out loss in nats per token; must not change the model."""
        self._model = model
        self._measure = measure

    @torch.no_grad()
    def loss(self, file: Path) -> float:
        """Mean loss in nats per token of the global in this file, which must be one of this
        model.
        """
        live = self._model.state_dict()
        with SafetensorsReader(file) as reader:
            for name, tensor in live.items():
                tensor.copy_(reader.read(name))
        return float(self._measure(self._model))
