"""Loss on held-out batches."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ray_diloco.workload.loss import batch_loss, count_tokens, move_batch


def evaluate(model: nn.Module, batches: Iterable[Any]) -> float:
    """Mean loss per token over ``batches`` (nats for the built-in models), each weighted by its
    tokens.

    No gradients, evaluation mode; leaves the model in the mode it was in. NaN for no batch at all.
    """
    device = next((value.device for value in model.parameters()), torch.device("cpu"))
    was_training = model.training
    model.eval()
    total, tokens = 0.0, 0
    try:
        with torch.no_grad():
            for batch in batches:
                count = count_tokens(batch)
                total += batch_loss(model, move_batch(batch, device)).item() * count
                tokens += count
    finally:
        model.train(was_training)
    return total / tokens if tokens else float("nan")
