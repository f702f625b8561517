"""A model of a user's own."""

import torch
from torch import nn


class Bytes(nn.Module):
    """Predicts each byte from the one before."""

    def __init__(self, width: int):
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(256, width), nn.Linear(width, 256))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.layers(tokens)
