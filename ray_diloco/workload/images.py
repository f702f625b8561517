"""Classifiers of small square images: a convolutional net with batch norm, and a perceptron."""

import itertools
import math

import torch
from torch import nn
from torch.nn import functional

from ray_diloco.workload.settings import ModelSettings
from ray_diloco.workload.undrawn import UndrawnConv2d, UndrawnLinear

_SIZES = {
    "tiny": {"layers": 2, "width": 16, "hidden": 64},
    "mini": {"layers": 3, "width": 32, "hidden": 256},
    "small": {"layers": 4, "width": 64, "hidden": 512},
}


class Cnn(nn.Module):
    """(batch, channels, size, size) float32 to (batch, classes) logits. Each layer: convolution,
    batch norm, and half the size while there is more than one pixel.
    """

    def __init__(
        self, *, channels: int, image_size: int, classes: int, layers: int, width: int
    ) -> None:
        super().__init__()
        sizes = [channels] + [width] * layers
        pairs = list(itertools.pairwise(sizes))
        self.convolutions = nn.ModuleList(UndrawnConv2d(*pair, 3, padding=1) for pair in pairs)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in pairs)
        side = max(1, image_size >> layers)
        self.out = UndrawnLinear(width * side**2, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = images
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = functional.relu(norm(convolution(x)))
            x = functional.max_pool2d(x, 2) if x.shape[-1] > 1 else x
        return self.out(x.flatten(1))

    def draw_weights(self, generator: torch.Generator) -> None:
        draw_by_inputs(self, generator)


class Perceptron(nn.Module):
    """(batch, channels, size, size) float32 to (batch, classes) logits, through hidden layers."""

    def __init__(self, *, inputs: int, classes: int, layers: int, hidden: int) -> None:
        super().__init__()
        sizes = [inputs] + [hidden] * layers
        self.layers = nn.ModuleList(UndrawnLinear(*pair) for pair in itertools.pairwise(sizes))
        self.out = UndrawnLinear(hidden, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = images.flatten(1)
        for layer in self.layers:
            x = functional.relu(layer(x))
        return self.out(x)

    def draw_weights(self, generator: torch.Generator) -> None:
        draw_by_inputs(self, generator)


@torch.no_grad()
def draw_by_inputs(model: nn.Module, generator: torch.Generator) -> None:
    """Matrices and kernels with variance 2 / inputs (arXiv 1502.01852); biases zero; norms stay
    one and zero.
    """
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            std = math.sqrt(2 / parameter[0].numel())
            parameter.normal_(0.0, std, generator=generator)
        elif name.endswith("bias"):
            parameter.zero_()


def cnn_from(settings: ModelSettings) -> Cnn:
    """The named size with the single fields that are set."""
    sizes = _sizes(settings)
    return Cnn(
        channels=settings.channels,
        image_size=settings.image_size,
        classes=settings.classes,
        layers=sizes["layers"],
        width=sizes["width"],
    )


def perceptron_from(settings: ModelSettings) -> Perceptron:
    """The named size with the single fields that are set."""
    sizes = _sizes(settings)
    return Perceptron(
        inputs=settings.channels * settings.image_size**2,
        classes=settings.classes,
        layers=sizes["layers"],
        hidden=sizes["hidden"],
    )


def _sizes(settings: ModelSettings) -> dict[str, int]:
    return _SIZES[settings.size] | {
        name: value for name in _SIZES["tiny"] if (value := getattr(settings, name)) is not None
    }
