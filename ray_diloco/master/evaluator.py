"""The held-out loss of a global, from its file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ray_diloco.tensors.safetensors_reader import SafetensorsReader
from ray_diloco.workload.evaluation import evaluate


class Evaluator:
    """A model of its own and fixed batches; one call at a time."""

    def __init__(self, model: nn.Module, batches: Sequence[Any]) -> None:
        self._model = model
        self._batches = batches

    @torch.no_grad()
    def loss(self, file: Path) -> float:
        """Mean loss in nats per token of the global in this file, which must be one of this
        model.
        """
        live = self._model.state_dict()
        with SafetensorsReader(file) as reader:
            for name, tensor in live.items():
                tensor.copy_(reader.read(name))
        return evaluate(self._model, self._batches)
