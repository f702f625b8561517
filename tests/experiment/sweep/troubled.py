"""A user's own model that ends its trial in every way there is."""

import os
import signal
import threading

import torch
from torch import nn
from torch.nn import functional


class Troubled(nn.Module):
    """``trouble``: what its third training step does."""

    def __init__(self, trouble: str = "none") -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 8)
        self.head = nn.Linear(8, 256)
        self._trouble = trouble
        self._calls = 0

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self._calls += self.training
        if self._calls == 3:
            make_trouble(self._trouble)
        logits = self.head(self.embedding(tokens))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make_trouble(kind: str) -> None:
    match kind:
        case "raise":
            raise FloatingPointError("the third step goes wrong")
        case "memory":
            raise MemoryError("the third step is too large")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            threading.Event().wait()
