"""Small models, each with what makes a state hard to exchange, and batches for them."""

import torch
from torch import nn
from torch.nn import functional

WIDTH = 6


class Plain(nn.Module):
    """Two layers that return their loss."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, 8)
        self.outer = nn.Linear(8, 3)

    def forward(self, inputs, targets):
        return functional.cross_entropy(self.outer(self.inner(inputs).tanh()).float(), targets)


class Tied(nn.Module):
    """One matrix under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Linear(WIDTH, WIDTH, bias=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up.weight = self.down.weight

    def forward(self, inputs, targets):
        return functional.cross_entropy(self.up(self.norm(self.down(inputs)).relu()), targets)


class Half(Plain):
    """Weights in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.bfloat16()

    def forward(self, inputs, targets):
        return super().forward(inputs.bfloat16(), targets)


class Counting(nn.Module):
    """Statistics, and counters that go on locally."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, 8)
        self.norm = nn.BatchNorm1d(8)
        self.outer = nn.Linear(8, 3)
        self.register_buffer("seen", torch.zeros(3, dtype=torch.int64))
        self.register_buffer("mask", torch.tensor([True, False, True]))

    def forward(self, inputs, targets):
        self.seen += torch.bincount(targets, minlength=3)
        return functional.cross_entropy(self.outer(self.norm(self.inner(inputs)).relu()), targets)


class Complex(nn.Module):
    """A complex matrix beside a real one."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Parameter(torch.randn(WIDTH, 8, dtype=torch.complex64))
        self.outer = nn.Linear(8, 3)

    def forward(self, inputs, targets):
        turned = inputs.to(torch.complex64) @ self.turn
        return functional.cross_entropy(self.outer(turned.abs()), targets)


def build(kind: type[nn.Module]) -> nn.Module:
    """The same weights at each call."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return kind()


def batches(seed: int, *, count: int = 5, size: int = 4):
    """(inputs, targets) pairs; the stream of a node repeats them."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(size, WIDTH, generator=generator),
            torch.randint(3, (size,), generator=generator),
        )
        for _ in range(count)
    ]
