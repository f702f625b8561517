"""Layers whose weights are drawn by the model that holds them: torch's own constructors draw from
the global generator.
"""

from torch import nn


class UndrawnLinear(nn.Linear):
    """A linear layer with memory for its weights, but no values yet."""

    def reset_parameters(self) -> None:
        """Nothing: ``draw_weights`` of the model fills them."""


class UndrawnEmbedding(nn.Embedding):
    """An embedding with memory for its weights, but no values yet."""

    def reset_parameters(self) -> None:
        """Nothing: ``draw_weights`` of the model fills them."""


class UndrawnConv2d(nn.Conv2d):
    """A convolution with memory for its weights, but no values yet."""

    def reset_parameters(self) -> None:
        """Nothing: ``draw_weights`` of the model fills them."""
