"""A user's own models: one goes wrong in one node of a run, another looks around."""

from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional


class FailsInOneNode(nn.Module):
    """The second one that is built for training raises in its sixth step."""

    trained: ClassVar[list[int]] = []

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 8)
        self.head = nn.Linear(8, 256)
        self._calls = 0
        self._place: int | None = None

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if self.training:
            self._count()
        logits = self.head(self.embedding(tokens))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def _count(self) -> None:
        if self._place is None:
            self._place = len(self.trained)
            self.trained.append(id(self))
        self._calls += 1
        if self._place == 1 and self._calls == 6:
            raise FloatingPointError("the sixth step goes wrong")


class SeesThreads(FailsInOneNode):
    """Notes how many threads torch has while it trains."""

    seen: ClassVar[set[int]] = set()

    def _count(self) -> None:
        self.seen.add(torch.get_num_threads())
