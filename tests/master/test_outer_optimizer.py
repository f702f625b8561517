import pytest
import torch

from ray_diloco.errors import ConfigError
from ray_diloco.master.outer_optimizer import OuterOptimizer, buffer_names, outer_step


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_nesterov_equals_torch_sgd_over_20_random_steps(dtype):
    generator = torch.Generator().manual_seed(3)
    settings = OuterOptimizer(lr=0.7, momentum=0.9)
    start = torch.randn(40, dtype=dtype, generator=generator)
    theirs = torch.nn.Parameter(start.clone())
    sgd = torch.optim.SGD([theirs], lr=0.7, momentum=0.9, nesterov=True)
    ours, buffers = start.clone(), {"momentum": torch.zeros(40, dtype=dtype)}
    for _ in range(20):
        gradient = torch.randn(40, dtype=dtype, generator=generator)
        theirs.grad = gradient.clone()
        sgd.step()
        outer_step(settings, ours, gradient, buffers)
    assert (ours - theirs.detach()).abs().max() < 1e-12


def test_two_steps_give_the_hand_computed_numbers():
    settings = OuterOptimizer(lr=0.5, momentum=0.5)
    parameter = torch.tensor([1.0])
    buffers = {"momentum": torch.zeros(1)}
    outer_step(settings, parameter, torch.tensor([2.0]), buffers)  # m 2, step 0.5 * 3
    assert (parameter.item(), buffers["momentum"].item()) == (-0.5, 2.0)
    outer_step(settings, parameter, torch.tensor([-1.0]), buffers)  # m 0, step 0.5 * -1
    assert (parameter.item(), buffers["momentum"].item()) == (0.0, 0.0)


def test_lr_1_without_momentum_takes_the_mean_off():
    parameter = torch.tensor([3.0, -1.0])
    settings = OuterOptimizer(lr=1.0, momentum=0.0)
    outer_step(settings, parameter, torch.tensor([1.0, 1.0]), {"momentum": torch.zeros(2)})
    assert parameter.tolist() == [2.0, -2.0]


def test_any_cut_into_pieces_gives_the_same_bits():
    generator = torch.Generator().manual_seed(4)
    settings = OuterOptimizer()
    whole, mean, momentum = (torch.randn(1001, generator=generator) for _ in range(3))
    cut, cut_momentum = whole.clone(), momentum.clone()
    outer_step(settings, whole, mean, {"momentum": momentum})
    for start in range(0, 1001, 13):
        part = slice(start, start + 13)
        outer_step(settings, cut[part], mean[part], {"momentum": cut_momentum[part]})
    assert torch.equal(whole, cut)
    assert torch.equal(momentum, cut_momentum)


def test_an_unknown_optimizer_is_a_setting_that_cannot_be_used():
    settings = OuterOptimizer(name="lion")
    with pytest.raises(ConfigError, match="lion"):
        buffer_names(settings)
    with pytest.raises(ConfigError, match="lion"):
        outer_step(settings, torch.zeros(1), torch.zeros(1), {})
