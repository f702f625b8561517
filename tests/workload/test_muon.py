import copy

import pytest
import torch
from torch import nn

from ray_diloco.errors import ConfigError
from ray_diloco.workload.models import build_model
from ray_diloco.workload.muon import Together, hidden_matrices
from ray_diloco.workload.optimizers import build_optimizer
from ray_diloco.workload.schedules import set_learning_rate
from ray_diloco.workload.settings import InnerSettings, ModelSettings

MUON = InnerSettings(name="muon", momentum=0.9, learning_rate=0.01)


def stepped(model, optimizer, steps=1):
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        model(torch.randint(256, (2, 16), generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("name", ["gpt", "mlp"])
def test_muon_has_the_matrices_between_hidden_layers_and_adamw_the_rest(name):
    model = build_model(ModelSettings(name=name), seed=0)
    names = {id(parameter): key for key, parameter in model.named_parameters()}
    hidden = {names[id(parameter)] for parameter in hidden_matrices(model)}
    assert all(key.startswith(("blocks.", "layers.")) for key in hidden)
    expected = {key for key, p in model.named_parameters() if p.ndim == 2} - hidden
    assert expected <= {"embedding.weight", "out.weight"}
    groups = build_optimizer(model, MUON).param_groups
    assert {names[id(p)] for p in groups[0]["params"]} == hidden
    assert sum(len(group["params"]) for group in groups) == len(names)


def test_an_update_is_orthogonal_and_of_the_size_of_adamws():
    layer = nn.Linear(64, 64, bias=False)
    before = layer.weight.detach().clone()
    optimizer = build_optimizer(layer, InnerSettings(name="muon", weight_decay=0.0))
    layer(
        torch.randn(128, 64, generator=torch.Generator().manual_seed(0))
    ).square().sum().backward()
    optimizer.step()
    update = (layer.weight.detach() - before) / InnerSettings().learning_rate
    assert 0.1 < float(update.square().mean().sqrt()) < 0.3
    values = torch.linalg.svdvals(update)
    assert float(values.max() / values.median()) < 2


def test_the_schedule_reaches_both_also_after_a_state_was_loaded():
    model = build_model(ModelSettings(name="mlp"), seed=0)
    first, second = build_optimizer(model, MUON), build_optimizer(model, MUON)
    stepped(model, first)
    second.load_state_dict(first.state_dict())
    set_learning_rate(second, 0.5)
    assert {group["lr"] for group in second.param_groups} == {0.005}
    before = [parameter.detach().clone() for parameter in model.parameters()]
    set_learning_rate(second, 0.0)
    stepped(model, second)
    pairs = zip(before, model.parameters(), strict=True)
    assert all(torch.equal(old, new) for old, new in pairs)


def test_a_loaded_state_goes_on_exactly():
    models = [build_model(ModelSettings(name="mlp"), seed=0) for _ in range(2)]
    optimizers = [build_optimizer(model, MUON) for model in models]
    stepped(models[0], optimizers[0], steps=2)
    models[1].load_state_dict(models[0].state_dict())
    optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
    for model, optimizer in zip(models, optimizers, strict=True):
        stepped(model, optimizer, steps=2)
    pairs = zip(models[0].parameters(), models[1].parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_model_of_matrices_alone_needs_no_second_optimizer():
    assert not isinstance(build_optimizer(nn.Linear(4, 4, bias=False), MUON), Together)


def test_a_model_without_hidden_matrices_is_refused():
    with pytest.raises(ConfigError, match="hidden matrices"):
        build_optimizer(nn.Embedding(5, 3), MUON)
