"""Learning rate over local steps, as a function of the step alone: a resumed or reset node needs no
more than its number.
"""

import math

import torch

from ray_diloco.workload.settings import InnerSettings


def schedule_factor(settings: InnerSettings, local_step: int) -> float:
    """Share of the peak learning rate for the update that follows ``local_step`` completed ones.

    Rises linearly to 1 over ``warmup_steps``, then stays (constant) or falls along half a cosine to
    ``final_fraction`` at ``schedule_steps`` and stays there.
    """
    if local_step < settings.warmup_steps:
        return (local_step + 1) / (settings.warmup_steps + 1)
    if settings.schedule == "constant" or settings.schedule_steps is None:
        return 1.0
    falling = settings.schedule_steps - settings.warmup_steps
    progress = min(1.0, (local_step - settings.warmup_steps) / falling)
    return (
        settings.final_fraction
        + (1 - settings.final_fraction) * (1 + math.cos(math.pi * progress)) / 2
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Put every group at ``factor`` times its ``initial_lr``."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor
