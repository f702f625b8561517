"""Parts of a user's own that do not work, each in one way."""

import torch
from torch import nn


class Raises(nn.Module):
    def __init__(self):
        raise RuntimeError("no weights here\nand more")


class Untrainable(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.zeros(3))


class Works(nn.Module):
    def __init__(self, dtype: str = "float32"):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, dtype=getattr(torch, dtype)))

    def forward(self, tokens):
        return self.weight.abs().sum() + 0 * tokens.sum()


class Masked(Works):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.full((2, 2), float("-inf")))


class Lazy(Works):
    def __init__(self):
        super().__init__()
        self.layer = nn.LazyLinear(3)


class Extra(Works):
    def get_extra_state(self):
        return {"seen": 1}

    def set_extra_state(self, state):
        raise AssertionError(f"never saved: {state}")


class Reserved(Works):
    def __init__(self):
        super().__init__()
        self.register_parameter("__metadata__", nn.Parameter(torch.zeros(3)))


class RaisesLater(Works):
    def forward(self, _tokens):
        raise ValueError("not this batch")


class GivesText(Works):
    def forward(self, _tokens):
        return "a loss"


class Detached(Works):
    def forward(self, _tokens):
        return self.weight.detach().sum()


def batches(count: int = 80, top: int = 200):
    return [torch.full((2, 9), top) for _ in range(count)]


def raising_batches():
    yield torch.zeros(2, 9, dtype=torch.long)
    raise OSError("the disk is gone")


def raises(*_given):
    raise RuntimeError("not today")
