"""A feed-forward language model over a window of tokens: the simplest model for the same data, and
a fast one for tests.
"""

import itertools
import math

import torch
from torch import nn
from torch.nn import functional

from ray_diloco.workload.settings import ModelSettings
from ray_diloco.workload.undrawn import UndrawnEmbedding, UndrawnLinear

_SIZES = {
    "tiny": {"layers": 1, "width": 16, "hidden": 128},
    "mini": {"layers": 2, "width": 32, "hidden": 512},
    "small": {"layers": 4, "width": 64, "hidden": 2048},
}


class Mlp(nn.Module):
    """(batch, time) int64 token ids to (batch, time, vocabulary) logits, each from the last
    ``window`` tokens.

    Before the first token stands token 0.
    """

    def __init__(
        self, *, vocabulary: int, window: int, width: int, layers: int, hidden: int
    ) -> None:
        super().__init__()
        self.window = window
        self.embedding = UndrawnEmbedding(vocabulary, width)
        sizes = [window * width] + [hidden] * layers
        self.layers = nn.ModuleList(UndrawnLinear(*pair) for pair in itertools.pairwise(sizes))
        self.out = UndrawnLinear(hidden, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        padded = functional.pad(tokens, (self.window - 1, 0))
        embedded = self.embedding(padded)  # (batch, time + window - 1, width)
        x = embedded.unfold(1, self.window, 1).flatten(2)  # (batch, time, width * window)
        for layer in self.layers:
            x = functional.gelu(layer(x))
        return self.out(x)

    @torch.no_grad()
    def draw_weights(self, generator: torch.Generator) -> None:
        """Weights that keep the variance from layer to layer; biases zero."""
        for parameter in self.parameters():
            if parameter.ndim == 1:
                parameter.zero_()
            else:
                parameter.normal_(0.0, 1 / math.sqrt(parameter.shape[1]), generator=generator)


def mlp_from(settings: ModelSettings) -> Mlp:
    """The named size with the single fields that are set."""
    fields = _SIZES[settings.size] | {
        name: value for name in _SIZES["tiny"] if (value := getattr(settings, name)) is not None
    }
    return Mlp(vocabulary=settings.vocabulary, window=settings.window, **fields)
