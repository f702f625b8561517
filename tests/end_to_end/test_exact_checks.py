"""What must hold exactly: pure functions in float64 to 1e-12, through the hub to 1e-6 relative."""

import itertools

import pytest
import torch
from reference_state import adamw
from scene import INNER, Scene, playing, rounds_of
from subjects import WIDTH, Plain, batches, build
from torch import nn

from ray_diloco.master.outer_optimizer import OuterOptimizer, outer_step
from ray_diloco.protocol.settings import DilocoSettings


def assert_close(found, expected, *, relative: float) -> None:
    for name, value in expected.items():
        difference = (found[name].double() - value.double()).abs().max()
        assert difference <= relative * value.double().abs().max(), name


class Squares(nn.Module):
    """A regression that stays in the precision of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 1)

    def forward(self, inputs, targets):
        return (self.layer(inputs).squeeze(1) - targets).square().mean()


# -- the outer step is torch's SGD with Nesterov momentum ------------------------------------------


def test_twenty_rounds_through_the_hub_equal_torch_sgd(tmp_path):
    generator = torch.Generator().manual_seed(1)
    model = build(Squares)
    sgd = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    scene = Scene(tmp_path, lambda: build(Squares), DilocoSettings(poll_interval=1.0))
    master = scene.add_master()
    with playing(scene):
        scene.pass_seconds(2)
        for step in range(1, 21):
            deltas = {
                name: torch.randn(value.shape, generator=generator)
                for name, value in model.named_parameters()
            }
            scene.put_delta("a", step, deltas, base=step - 1)
            scene.pass_seconds(2)
            for name, parameter in model.named_parameters():
                parameter.grad = deltas[name].clone()
            sgd.step()
        assert_close(scene.weights(), model.state_dict(), relative=1e-6)
    assert len(rounds_of(master)) == 20


# -- one node, outer lr 1, momentum 0, no reset: plain AdamW ---------------------------------------


def plain_adamw(kind, data, *, steps: int, double: bool = False) -> nn.Module:
    model = build(kind)
    model = model.double() if double else model
    optimizer = adamw(model, lr=0.05)
    for inputs, targets in itertools.islice(itertools.cycle(data), steps):
        step_of_adamw(model, optimizer, (inputs.double() if double else inputs, targets))
    return model


def step_of_adamw(model: nn.Module, optimizer: torch.optim.Optimizer, batch) -> None:
    model(*batch).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("inner_steps", [1, 3, 7])
def test_one_node_with_the_plain_mean_is_plain_adamw_in_float64(inner_steps):
    data, settings = batches(1), OuterOptimizer(lr=1.0, momentum=0.0)
    model = build(Squares).double()
    optimizer = adamw(model, lr=0.05)
    published = {name: value.clone() for name, value in model.state_dict().items()}
    stream = itertools.cycle(data)
    for step in range(1, 43):
        inputs, targets = next(stream)
        step_of_adamw(model, optimizer, (inputs.double(), targets))
        if step % inner_steps:
            continue
        for name, value in model.state_dict().items():
            delta = published[name] - value
            outer_step(settings, published[name], delta, {"momentum": torch.zeros_like(value)})
            value.copy_(published[name])
    expected = plain_adamw(Squares, data, steps=42, double=True).state_dict()
    assert_close(published, expected, relative=1e-12)


PLAIN_MEAN = {"outer_lr": 1.0, "outer_momentum": 0.0}


@pytest.mark.parametrize("inner_steps", [1, 3, 7])
def test_a_round_at_each_boundary_of_one_node_is_plain_adamw(inner_steps, tmp_path):
    data = batches(1)
    model = build(Plain)
    optimizer = adamw(model, lr=0.05)
    scene = Scene(tmp_path, lambda: build(Plain), DilocoSettings(poll_interval=1.0, **PLAIN_MEAN))
    scene.add_master()
    with playing(scene):
        scene.pass_seconds(2)
        baseline = scene.weights()
        for step, batch in enumerate(itertools.islice(itertools.cycle(data), 42), start=1):
            step_of_adamw(model, optimizer, batch)
            if step % inner_steps == 0:
                delta = {n: baseline[n] - v for n, v in model.state_dict().items()}
                scene.put_delta("a", step, delta, base=step // inner_steps - 1)
                scene.pass_seconds(2)
                baseline = scene.weights()
                model.load_state_dict(baseline)
        assert_close(baseline, plain_adamw(Plain, data, steps=42).state_dict(), relative=1e-6)


@pytest.mark.parametrize("inner_steps", [3, 7])
def test_globals_that_arrive_during_training_leave_plain_adamw_as_it_is(inner_steps, tmp_path):
    settings = DilocoSettings(
        inner_steps=inner_steps, reset_inner_optimizer=False, poll_interval=0.25, **PLAIN_MEAN
    )
    scene = Scene(tmp_path, lambda: build(Plain), settings)
    node = scene.add_node("a", batches(1), steps=22)
    scene.add_master(expected=["a"])
    with playing(scene):
        pass
    assert node.report.dropped == ""
    assert node.report.installs > 2
    expected = plain_adamw(Plain, batches(1), steps=22).state_dict()
    assert_close(node.model.state_dict(), expected, relative=1e-6)


# -- k nodes, one step per round, inner SGD: data-parallel SGD -------------------------------------

NESTEROV = {"lr": 0.07, "momentum": 0.9, "nesterov": True}


def data_parallel(shards, *, rounds: int, double: bool, **sgd) -> nn.Module:
    """One model on the union of the batches."""
    model = build(Squares)
    model = model.double() if double else model
    optimizer = torch.optim.SGD(model.parameters(), **sgd)
    for number in range(rounds):
        inputs = torch.cat([shard[number % len(shard)][0] for shard in shards])
        targets = torch.cat([shard[number % len(shard)][1] for shard in shards])
        model(inputs.double() if double else inputs, targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@pytest.mark.parametrize(
    ("lr", "momentum", "equal"), [(1.0, 0.0, {"lr": 0.1}), (0.7, 0.9, NESTEROV)]
)
def test_single_steps_of_sgd_on_k_nodes_are_data_parallel_sgd_in_float64(lr, momentum, equal):
    shards = [batches(seed) for seed in range(4)]
    settings = OuterOptimizer(lr=lr, momentum=momentum)
    published = dict(build(Squares).double().state_dict())
    momenta = {name: torch.zeros_like(value) for name, value in published.items()}
    for number in range(20):
        deltas = [
            delta_of_one_step(published, shard[number % len(shard)], lr=0.1) for shard in shards
        ]
        for name, value in published.items():
            mean = sum(delta[name] for delta in deltas) / len(deltas)
            outer_step(settings, value, mean, {"momentum": momenta[name]})
    expected = data_parallel(shards, rounds=20, double=True, **equal).state_dict()
    assert_close(published, expected, relative=1e-12)


@pytest.mark.parametrize(
    ("lr", "momentum", "equal"), [(1.0, 0.0, {"lr": 0.1}), (0.7, 0.9, NESTEROV)]
)
def test_single_steps_of_sgd_on_k_nodes_are_data_parallel_sgd_through_the_hub(
    lr, momentum, equal, tmp_path
):
    shards = [batches(seed) for seed in range(4)]
    settings = DilocoSettings(poll_interval=1.0, outer_lr=lr, outer_momentum=momentum)
    scene = Scene(tmp_path, lambda: build(Squares), settings)
    master = scene.add_master()
    with playing(scene):
        scene.pass_seconds(2)
        for number in range(20):
            published = scene.weights()
            sent = [
                delta_of_one_step(published, shard[number % len(shard)], lr=0.1) for shard in shards
            ]
            for node, delta in enumerate(sent):
                scene.put_delta(f"n{node}", number + 1, delta, base=number)
            scene.pass_seconds(2)
        expected = data_parallel(shards, rounds=20, double=False, **equal).state_dict()
        assert_close(scene.weights(), expected, relative=1e-6)
    assert [len(deltas) for deltas in rounds_of(master)] == [4] * 20


def delta_of_one_step(published, batch, *, lr: float):
    model = build(Squares).to(next(iter(published.values())).dtype)
    model.load_state_dict(published)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    model(batch[0].to(model.layer.weight.dtype), batch[1]).backward()
    optimizer.step()
    return {name: published[name] - value for name, value in model.state_dict().items()}


def test_the_inner_settings_of_these_checks_are_plain_adamw():
    assert (INNER.name, INNER.learning_rate, INNER.clip_norm) == ("adamw", 0.05, 1.0)
    assert (INNER.warmup_steps, INNER.schedule) == (0, "constant")
