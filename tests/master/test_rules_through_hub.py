"""Whole masters by arrival rules: deltas from a repository, globals into it."""

from pathlib import Path

import pytest
import torch
from master_scene import claim, delta, lead, model, published, send, tensors_of
from safetensors.torch import load_file

from ray_diloco.hub.memory import MemoryRepository
from ray_diloco.master.outer_optimizer import OuterOptimizer, Turn, buffer_names, outer_step

NODES = ("a", "b")
STEPS = (10, 20, 30)


def led(folder: Path, **settings) -> torch.Tensor:
    """The entry w of the last global of a master that merged three rounds of two deltas."""
    repository = MemoryRepository()
    send(repository, *(delta(node, step) for step in STEPS for node in NODES))
    send(repository, *(claim(node, "done") for node in NODES))
    report = lead(repository, folder, expected=NODES, max_deltas_per_round=2, **settings)
    assert published(repository).outer_step == 3
    return load_file(report.model_file)["w"].double()


def stepped(optimizer: OuterOptimizer, gradients: list[torch.Tensor]) -> torch.Tensor:
    parameter, turn = model()["w"].double(), Turn()
    buffers = {name: torch.zeros_like(parameter) for name in buffer_names(optimizer)}
    for gradient in gradients:
        turn = turn.left(optimizer).next()
        outer_step(optimizer, parameter, gradient, buffers, turn)
    return parameter


def sent(node: str, step: int) -> torch.Tensor:
    return tensors_of(sum(node.encode()) * 1000 + step)["w"].double()


def close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return bool((found - wanted).norm() / wanted.norm() < 1e-6)


@pytest.mark.parametrize("outer", ["delayed_nesterov", "buffered"])
def test_over_as_many_arrivals_as_a_round_has_it_is_nesterov_on_their_mean(tmp_path, outer):
    means = [sum(sent(node, step) for node in NODES) / 2 for step in STEPS]
    wanted = stepped(OuterOptimizer(lr=0.5, momentum=0.9), means)
    found = led(tmp_path, outer=outer, outer_lr=0.5, outer_momentum=0.9, outer_arrivals=2)
    assert close(found, wanted)
    assert close(led(tmp_path / "plain", outer_lr=0.5, outer_momentum=0.9), wanted)


def test_with_n_1_delayed_nesterov_is_nesterov_on_each_delta(tmp_path):
    each = [sent(node, step) for step in STEPS for node in NODES]
    wanted = stepped(OuterOptimizer(lr=0.1, momentum=0.9), each)
    found = led(
        tmp_path, outer="delayed_nesterov", outer_lr=0.1, outer_momentum=0.9, outer_arrivals=1
    )
    assert close(found, wanted)


def test_n_is_the_number_of_nodes_when_nobody_sets_it(tmp_path):
    rule = {"outer": "delayed_nesterov", "outer_lr": 0.5, "outer_momentum": 0.9}
    assert torch.equal(led(tmp_path, **rule), led(tmp_path / "2", **rule, outer_arrivals=2))


def test_the_global_says_which_optimizer_moved_it(tmp_path):
    repository = MemoryRepository()
    send(repository, delta("a", 10), claim("a", "done"))
    lead(repository, tmp_path, expected=("a",), outer="adam")
    assert published(repository).optimizer == "adam"
