"""How large a step a quadratic bears when every delta is equally stale: staleness and momentum
multiply. For momentum 0 the limit of lr x curvature is 2 sin(pi / (2 (2 t + 1))).
"""

import math
from itertools import pairwise

import pytest
import torch
from scene import Scene, playing, rounds_of
from torch import nn

from ray_diloco.master.outer_optimizer import OuterOptimizer, outer_step
from ray_diloco.protocol.settings import DilocoSettings
from ray_diloco.workload.settings import InnerSettings

WITH_MOMENTUM = (1.357, 0.253, 0.081, 0.046, 0.033)
"""Limits with momentum 0.9, by staleness."""
LIMITS = {
    (staleness, 0.0): 2 * math.sin(math.pi / (2 * (2 * staleness + 1))) for staleness in range(5)
} | {(staleness, 0.9): limit for staleness, limit in enumerate(WITH_MOMENTUM)}


def growth(optimizer, staleness, steepness):
    """By how much the weights grow from one round to the next in the end: the spectral radius of a
    round as a linear map of the last weights and the momentum. Each unit vector is one element.
    """
    history = list(torch.eye(staleness + 2, dtype=torch.float64))
    *weights, momentum = history
    newest = weights[0].clone()
    buffers = {"momentum": momentum.clone()} if optimizer.name == "nesterov" else {}
    outer_step(optimizer, newest, steepness * weights[-1], buffers)
    after = [newest, *weights[:-1], buffers.get("momentum", torch.zeros_like(newest))]
    return torch.linalg.eigvals(torch.stack(after)).abs().max().item()


def largest_stable(optimizer, staleness):
    """lr x curvature up to which nothing grows, by bisection."""
    low, high = 0.0, 4.0
    for _ in range(40):
        middle = (low + high) / 2
        stable = growth(optimizer, staleness, middle / optimizer.lr) <= 1 + 1e-12
        low, high = (middle, high) if stable else (low, middle)
    return low


@pytest.mark.parametrize(("staleness", "momentum"), list(LIMITS))
def test_the_largest_stable_step_is_the_one_that_staleness_and_momentum_allow(staleness, momentum):
    found = largest_stable(OuterOptimizer(lr=0.7, momentum=momentum), staleness)
    exactness = 1e-6 if momentum == 0 else 5e-4
    assert found == pytest.approx(LIMITS[staleness, momentum], abs=exactness)


def test_sgd_bears_what_nesterov_bears_without_momentum():
    for staleness in range(5):
        found = largest_stable(OuterOptimizer(name="sgd", lr=0.5), staleness)
        assert found == pytest.approx(LIMITS[staleness, 0.0], abs=1e-6)


# -- the same through the exchange -----------------------------------------------------------------

ROUNDS = 50


class Bowl(nn.Module):
    """Half the square of one number; its gradient is the number."""

    def __init__(self) -> None:
        super().__init__()
        self.height = nn.Parameter(torch.ones(1))

    def forward(self, batch):
        return (self.height * batch).square().sum() / 2


def heights(folder, *, nodes, steepness, momentum):
    """The globals of a run whose nodes hand over each step, in turn, and go on from the newest
    global at that moment; and the staleness of each delta. A step takes a second.
    """
    settings = DilocoSettings(
        inner_steps=1,
        outer_lr=1.0,
        outer_momentum=momentum,
        poll_interval=0.5,
        async_delta_upload=False,
        async_global_poll=False,
    )
    inner = InnerSettings(
        name="sgd",
        learning_rate=steepness,
        momentum=0.0,
        weight_decay=0.0,
        clip_norm=None,
        warmup_steps=0,
        schedule="constant",
    )
    scene, found = Scene(folder, Bowl, settings), []
    master = scene.add_master(work_seconds=0.0, expected=[f"n{node}" for node in range(nodes)])
    with playing(scene):
        scene.pass_seconds(0.25)
        for node in range(nodes):
            scene.add_node(f"n{node}", [torch.ones(1)], steps=ROUNDS // nodes, inner=inner)
            scene.start()
            scene.pass_seconds(0.5)
        for _ in range(ROUNDS - nodes):
            found.append(scene.weights()["height"].item())
            scene.pass_seconds(1 / nodes)
    ages = [d["staleness"] for e in master.events for d in e.get("deltas", ())]
    assert all(len(deltas) == 1 for deltas in rounds_of(master))
    return found, ages


@pytest.mark.slow
@pytest.mark.parametrize(("staleness", "momentum"), [(1, 0.0), (1, 0.9), (2, 0.0), (2, 0.9)])
@pytest.mark.parametrize("part", [0.8, 1.25])
def test_a_run_with_constant_staleness_is_stable_up_to_the_limit(
    staleness, momentum, part, tmp_path
):
    steepness = part * LIMITS[staleness, momentum]
    found, ages = heights(tmp_path, nodes=staleness, steepness=steepness, momentum=momentum)
    assert set(ages[staleness:]) == {staleness}

    # w(v+1) = w(v) - (g + b m(v+1)), m(v+1) = b m(v) + g, g = steepness * w(v-t); without m.
    moves = [before - after for before, after in pairwise(found)]
    gradients = [0.0] * staleness + [steepness * height for height in found]
    for v in range(staleness + 3, len(moves)):
        trailing = momentum * (moves[v - 1] - gradients[v - 1])
        move = (1 + momentum) * gradients[v] + trailing
        assert moves[v] == pytest.approx(move, abs=1e-5 * max(map(abs, found)))
    early, late = (max(map(abs, each)) for each in (found[4:14], found[-10:]))
    assert (late > early) == (part > 1)
