"""A small GPT: rotary positions (arXiv 2104.09864), grouped-query attention (2305.13245), SwiGLU
(2002.05202), RMSNorm (1910.07467), and an output layer that is the embedding.

Few, large operations: on one CPU thread the call overhead of a small model counts as much as its
arithmetic.
"""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ray_diloco.errors import ConfigError
from ray_diloco.workload.settings import ModelSettings
from ray_diloco.workload.undrawn import UndrawnEmbedding, UndrawnLinear

_ROTARY_BASE = 10_000.0
_EPSILON = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class GptShape:
    """Everything that fixes the tensors of a GPT."""

    vocabulary: int
    context: int
    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int

    @property
    def head_width(self) -> int:
        return self.width // self.heads


_SIZES = {
    "tiny": {"layers": 3, "width": 64, "heads": 4, "kv_heads": 2, "hidden": 176},
    "mini": {"layers": 6, "width": 256, "heads": 8, "kv_heads": 4, "hidden": 688},
    "small": {"layers": 12, "width": 768, "heads": 12, "kv_heads": 4, "hidden": 2560},
}


def gpt_shape(settings: ModelSettings) -> GptShape:
    """The named size with the single fields that are set; ConfigError when heads do not divide."""
    fields = _SIZES[settings.size] | {
        name: value for name in _SIZES["tiny"] if (value := getattr(settings, name)) is not None
    }
    shape = GptShape(vocabulary=settings.vocabulary, context=settings.context, **fields)
    if shape.width % (2 * shape.heads):
        raise ConfigError(
            "model.heads",
            shape.heads,
            f"expected model.width ({shape.width}) to be a multiple of twice that",
        )
    if shape.heads % shape.kv_heads:
        raise ConfigError(
            "model.kv_heads", shape.kv_heads, f"expected a divisor of model.heads ({shape.heads})"
        )
    return shape


class Attention(nn.Module):
    """Causal self-attention; query, key and value come from one matrix."""

    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self.shape = shape
        features = (shape.heads + 2 * shape.kv_heads) * shape.head_width
        self.query_key_value = UndrawnLinear(shape.width, features, bias=False)
        self.out = UndrawnLinear(shape.width, shape.width, bias=False)

    def forward(self, x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        batch, time, _ = x.shape
        heads, kv_heads = self.shape.heads, self.shape.kv_heads
        mixed = self.query_key_value(x).view(batch, time, heads + 2 * kv_heads, -1).transpose(1, 2)
        turned = rotate(mixed[:, : heads + kv_heads], rotation)
        attended = functional.scaled_dot_product_attention(
            turned[:, :heads],  # (batch, heads, time, head_width)
            turned[:, heads:],  # (batch, kv_heads, time, head_width)
            mixed[:, heads + kv_heads :],
            is_causal=True,
            enable_gqa=kv_heads != heads,
        )
        return self.out(attended.transpose(1, 2).reshape(batch, time, -1))


class Block(nn.Module):
    """Attention, then SwiGLU, each on a normed copy and added back."""

    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width, eps=_EPSILON)
        self.attention = Attention(shape)
        self.feed_norm = nn.RMSNorm(shape.width, eps=_EPSILON)
        self.gate = UndrawnLinear(shape.width, shape.hidden, bias=False)
        self.up = UndrawnLinear(shape.width, shape.hidden, bias=False)
        self.down = UndrawnLinear(shape.hidden, shape.width, bias=False)

    def forward(self, x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), rotation)
        normed = self.feed_norm(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class Gpt(nn.Module):
    """(batch, time) int64 token ids to (batch, time, vocabulary) logits."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, shape: GptShape, *, activation_checkpointing: bool = False) -> None:
        super().__init__()
        self.shape = shape
        self.activation_checkpointing = activation_checkpointing
        self.embedding = UndrawnEmbedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=_EPSILON)
        for name, table in zip(("cos", "sin"), rotary_tables(shape), strict=True):
            self.register_buffer(name, table, persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        time = tokens.shape[1]
        rotation = (self.cos[:time].to(x.dtype), self.sin[:time].to(x.dtype))
        for block in self.blocks:
            if self.activation_checkpointing and self.training:
                x = checkpoint(block, x, rotation, use_reentrant=False)
            else:
                x = block(x, rotation)
        return functional.linear(self.norm(x), self.embedding.weight)

    @torch.no_grad()
    def draw_weights(self, generator: torch.Generator) -> None:
        """Normal weights of half the standard deviation that keeps the variance, those that write
        into the residual stream smaller with depth (the rule of GPT-2); norms one.
        """
        usual = 0.5 / math.sqrt(self.shape.width)
        residual = usual / math.sqrt(2 * self.shape.layers)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0)
            else:
                std = residual if name.endswith(("out.weight", "down.weight")) else usual
                parameter.normal_(0.0, std, generator=generator)


def rotary_tables(shape: GptShape) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of (context, head_width / 2) angles, float32 (computed in float64: an angle may
    be large), on the CPU; without values where the model is only sized, on the meta device, whose
    arithmetic would take Torch seconds to import.
    """
    pairs = shape.head_width // 2
    if torch.get_default_device().type == "meta":
        return torch.empty(shape.context, pairs), torch.empty(shape.context, pairs)
    with torch.device("cpu"):
        frequencies = _ROTARY_BASE ** -(torch.arange(pairs, dtype=torch.float64) / pairs)
        angles = torch.arange(shape.context, dtype=torch.float64)[:, None] * frequencies
    return angles.cos().float(), angles.sin().float()


def rotate(x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Turn each pair (feature i, feature i + half) of (batch, heads, time, head_width) by its
    position's angle.
    """
    cos, sin = rotation
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)
