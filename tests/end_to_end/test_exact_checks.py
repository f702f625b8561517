"""What must hold exactly: pure functions in float64 to 1e-12, through the hub to 1e-6 relative."""

import itertools

import pytest
import reference
import torch
from by_hand import MasterByHand, NodeByHand, put_delta
from parts import INNER, play
from subjects import WIDTH, Plain, batches, build
from torch import nn

from ray_diloco.hub.memory import MemoryRepository
from ray_diloco.master.outer_optimizer import OuterOptimizer, outer_step
from ray_diloco.protocol.settings import DilocoSettings


def assert_close(found, expected, *, relative: float) -> None:
    for name, value in expected.items():
        difference = (found[name].double() - value.double()).abs().max()
        assert difference <= relative * value.double().abs().max(), name


# -- the outer step is torch's SGD with Nesterov momentum ------------------------------------------


def test_twenty_rounds_through_the_hub_equal_torch_sgd(tmp_path):
    generator = torch.Generator().manual_seed(1)
    model = nn.Linear(5, 3)
    theirs = [value.detach().clone().requires_grad_() for value in model.parameters()]
    sgd = torch.optim.SGD(theirs, lr=0.7, momentum=0.9, nesterov=True)
    repository = MemoryRepository()
    master = MasterByHand(repository, tmp_path, model)
    for step in range(1, 21):
        deltas = {n: torch.randn(v.shape, generator=generator) for n, v in model.state_dict().items()}
        put_delta(repository.another(), "a", step, deltas, base=step - 1)
        assert master.round()
        for parameter, delta in zip(theirs, deltas.values(), strict=True):
            parameter.grad = delta.clone()
        sgd.step()
    assert master.outer_step == 20
    expected = dict(zip(model.state_dict(), (each.detach() for each in theirs), strict=True))
    assert_close(master.weights, expected, relative=1e-6)


# -- one node, outer lr 1, momentum 0, no reset: plain AdamW ---------------------------------------


def plain_adamw(kind, data, *, steps: int, double: bool = False) -> nn.Module:
    model = build(kind)
    model = model.double() if double else model
    optimizer = reference.adamw(model, lr=0.05)
    for inputs, targets in itertools.islice(itertools.cycle(data), steps):
        model(inputs.double() if double else inputs, targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model


class Squares(nn.Module):
    """A regression that stays in the precision of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 1)

    def forward(self, inputs, targets):
        return (self.layer(inputs).squeeze(1) - targets).square().mean()


@pytest.mark.parametrize("inner_steps", [1, 3, 7])
def test_one_node_with_the_plain_mean_is_plain_adamw_in_float64(inner_steps):
    data, settings = batches(1), OuterOptimizer(lr=1.0, momentum=0.0)
    model = build(Squares).double()
    optimizer = reference.adamw(model, lr=0.05)
    published = {name: value.clone() for name, value in model.state_dict().items()}
    stream = itertools.cycle(data)
    for step in range(1, 43):
        inputs, targets = next(stream)
        model(inputs.double(), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % inner_steps:
            continue
        for name, value in model.state_dict().items():
            delta = published[name] - value
            outer_step(settings, published[name], delta, {"momentum": torch.zeros_like(value)})
            value.copy_(published[name])
    assert_close(published, plain_adamw(Squares, data, steps=42, double=True).state_dict(), relative=1e-12)


PLAIN_MEAN = {"outer_lr": 1.0, "outer_momentum": 0.0}


@pytest.mark.parametrize("inner_steps", [1, 3, 7])
def test_a_round_at_each_boundary_of_one_node_is_plain_adamw(inner_steps, tmp_path):
    data, repository = batches(1), MemoryRepository()
    master = MasterByHand(repository, tmp_path, build(Plain), DilocoSettings(**PLAIN_MEAN))
    node = NodeByHand(repository.another(), tmp_path, build(Plain))
    node.poll()
    optimizer = reference.adamw(node.model, lr=0.05)
    for step, batch in enumerate(itertools.islice(itertools.cycle(data), 42), start=1):
        node.model(*batch).backward()
        nn.utils.clip_grad_norm_(node.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % inner_steps == 0:
            assert node.upload(step).outcome == "landed"
            assert master.round()
            assert node.poll().state is not None
    assert_close(master.weights, plain_adamw(Plain, data, steps=42).state_dict(), relative=1e-6)


@pytest.mark.parametrize("inner_steps", [3, 7])
def test_globals_that_arrive_during_training_leave_plain_adamw_as_it_is(inner_steps, tmp_path):
    data = {"a": batches(1)}
    settings = DilocoSettings(
        inner_steps=inner_steps, reset_inner_optimizer=False, poll_interval=0.25, **PLAIN_MEAN
    )
    played = play(tmp_path, build=lambda: build(Plain), batches=data, settings=settings, steps=21)
    assert played.nodes["a"].dropped == ""
    assert played.nodes["a"].installs > 2
    expected = plain_adamw(Plain, data["a"], steps=21).state_dict()
    assert_close(played.models["a"].state_dict(), expected, relative=1e-6)


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
    shards, settings = [batches(seed) for seed in range(4)], OuterOptimizer(lr=lr, momentum=momentum)
    model = build(Squares).double()
    published = {name: value.clone() for name, value in model.state_dict().items()}
    momenta = {name: torch.zeros_like(value) for name, value in published.items()}
    for number in range(20):
        deltas = []
        for shard in shards:
            model.load_state_dict(published)
            inputs, targets = shard[number % len(shard)]
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizer.zero_grad()
            model(inputs.double(), targets).backward()
            optimizer.step()
            deltas.append({n: published[n] - v for n, v in model.state_dict().items()})
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
    shards, repository = [batches(seed) for seed in range(4)], MemoryRepository()
    settings = DilocoSettings(inner_steps=1, outer_lr=lr, outer_momentum=momentum)
    master = MasterByHand(repository, tmp_path, build(Squares), settings)
    nodes = [
        NodeByHand(repository.another(), tmp_path, build(Squares), f"n{number}")
        for number in range(4)
    ]
    for number in range(20):
        for node, shard in zip(nodes, shards, strict=True):
            assert node.poll().card is not None
            inputs, targets = shard[number % len(shard)]
            optimizer = torch.optim.SGD(node.model.parameters(), lr=0.1)
            optimizer.zero_grad()
            node.model(inputs, targets).backward()
            optimizer.step()
            assert node.upload(number + 1).outcome == "landed"
        assert master.round()
        assert len(master.merged()[-1]) == 4
    expected = data_parallel(shards, rounds=20, double=False, **equal).state_dict()
    assert_close(master.weights, expected, relative=1e-6)


def test_the_inner_settings_of_these_checks_are_plain_adamw():
    assert (INNER.name, INNER.learning_rate, INNER.clip_norm) == ("adamw", 0.05, 1.0)
    assert (INNER.warmup_steps, INNER.schedule) == (0, "constant")
