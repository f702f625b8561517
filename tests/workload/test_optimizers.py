import pytest
import torch
from torch import nn

from ray_diloco.errors import ConfigError
from ray_diloco.workload.models import build_model
from ray_diloco.workload.optimizers import build_optimizer
from ray_diloco.workload.settings import InnerSettings, ModelSettings


def partial(parameters, lr):
    return torch.optim.SGD(parameters[:1], lr=lr)


def custom(target, **arguments):
    return InnerSettings(
        name="custom", custom={"_target_": target, **arguments}, allow_targets=[__name__]
    )


_EACH = [
    InnerSettings(name="adamw"),
    InnerSettings(name="sgd"),
    InnerSettings(name="muon", momentum=0.9),
    custom("torch.optim.RMSprop", eps=1e-6),
]


@pytest.mark.parametrize("model", [ModelSettings(), ModelSettings(name="mlp")])
@pytest.mark.parametrize("settings", _EACH, ids=lambda settings: settings.name)
def test_every_parameter_that_takes_gradients_moves(settings, model):
    model = build_model(model, seed=0)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = build_optimizer(model, settings)
    tokens = torch.randint(256, (2, 16), generator=torch.Generator().manual_seed(0))
    model(tokens).square().mean().backward()
    optimizer.step()
    still = [name for name, value in model.named_parameters() if torch.equal(before[name], value)]
    assert not still


def test_a_frozen_parameter_is_left_out():
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    groups = build_optimizer(model, InnerSettings()).param_groups
    assert [len(group["params"]) for group in groups] == [1]


def test_only_matrices_decay():
    groups = build_optimizer(nn.Linear(2, 2), InnerSettings(weight_decay=0.3)).param_groups
    decays = {group["params"][0].ndim: group["weight_decay"] for group in groups}
    assert decays == {2: 0.3, 1: 0.0}


def test_a_tied_weight_is_stepped_once():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    (group,) = build_optimizer(model, InnerSettings()).param_groups
    assert len(group["params"]) == 1


def test_the_settings_reach_the_optimizer():
    settings = InnerSettings(learning_rate=0.5, beta1=0.8, beta2=0.9, epsilon=1e-3)
    group = build_optimizer(nn.Linear(2, 2), settings).param_groups[0]
    assert (group["lr"], group["betas"], group["eps"]) == (0.5, (0.8, 0.9), 1e-3)
    group = build_optimizer(nn.Linear(2, 2), InnerSettings(name="sgd", momentum=0.9)).param_groups[
        0
    ]
    assert group["momentum"] == 0.9


def test_a_custom_optimizer_takes_the_learning_rate_unless_it_has_its_own():
    offered, own = (
        build_optimizer(nn.Linear(2, 2), custom("torch.optim.RMSprop", **arguments))
        for arguments in ({}, {"lr": 0.25})
    )
    assert offered.param_groups[0]["initial_lr"] == InnerSettings().learning_rate
    assert own.param_groups[0]["initial_lr"] == 0.25


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (f"{__name__}.partial", "leaves parameters out"),
        ("torch.optim.swa_utils.AveragedModel", "inner.custom"),
    ],
)
def test_a_target_that_steps_not_everything_or_is_no_optimizer_is_refused(target, reason):
    with pytest.raises(ConfigError, match=reason):
        build_optimizer(nn.Linear(2, 2), custom(target))


def test_a_model_without_anything_to_train_is_refused():
    with pytest.raises(ConfigError, match="no parameter"):
        build_optimizer(nn.ReLU(), InnerSettings())
