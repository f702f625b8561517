"""The outer optimizers other than Nesterov, against torch, formulas and hand-computed numbers."""

import pytest
import torch

from ray_diloco.errors import ConfigError, GlobalError
from ray_diloco.master.outer_optimizer import OuterOptimizer, Turn, buffer_names, outer_step
from ray_diloco.protocol.rules import OUTER_BUFFERS
from ray_diloco.protocol.settings import DilocoSettings

SIZE = 40
NAMES = ("nesterov", "sgd", "adam", "delayed_nesterov", "buffered")


def zeros(optimizer, like):
    return {name: torch.zeros_like(like) for name in buffer_names(optimizer)}


def draw(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def after(optimizer, start, gradients, weights=None):
    """The parameters after these steps or arrivals, and the buffers."""
    parameter, buffers, turn = start.clone(), zeros(optimizer, start), Turn()
    for gradient, weight in zip(gradients, weights or [1.0] * len(gradients), strict=True):
        turn = turn.left(optimizer).next(weight)
        outer_step(optimizer, parameter, gradient, buffers, turn)
    return parameter, buffers


def largest(difference) -> float:
    return difference.abs().max().item()


def test_adam_equals_torch_adam_over_20_random_steps():
    settings = OuterOptimizer(name="adam", lr=0.3, momentum=0.8, beta2=0.95, eps=0.1)
    start, gradients = draw(1, SIZE), draw(2, 20, SIZE)
    theirs = torch.nn.Parameter(start.clone())
    adam = torch.optim.Adam([theirs], lr=0.3, betas=(0.8, 0.95), eps=0.1)
    for gradient in gradients:
        theirs.grad = gradient.clone()
        adam.step()
    ours, _ = after(settings, start, gradients)
    assert largest(ours - theirs.detach()) < 1e-12


def test_sgd_is_nesterov_without_momentum():
    start, gradients = draw(1, SIZE), draw(2, 5, SIZE)
    ours, buffers = after(OuterOptimizer(name="sgd", lr=0.7, momentum=0.0), start, gradients)
    theirs, _ = after(OuterOptimizer(lr=0.7, momentum=0.0), start, gradients)
    assert torch.equal(ours, theirs)
    assert buffers == {}


@pytest.mark.parametrize("arrivals", [1, 2, 4, 7])
def test_delayed_nesterov_over_n_arrivals_is_one_nesterov_step_on_their_mean(arrivals):
    start, gradients = draw(3, SIZE), draw(4, 3 * arrivals, SIZE)
    delayed = OuterOptimizer(name="delayed_nesterov", arrivals=arrivals)
    ours, buffers = after(delayed, start, gradients)
    means = gradients.view(3, arrivals, SIZE).mean(dim=1)
    theirs, momentum = after(OuterOptimizer(), start, means)
    assert largest(ours - theirs) < 1e-12
    assert largest(buffers["momentum"] - momentum["momentum"]) < 1e-12
    assert largest(buffers["arrived"]) == 0


def test_delayed_nesterov_with_n_1_is_nesterov_whatever_c_is():
    start, gradients = draw(3, SIZE), draw(4, 9, SIZE)
    theirs, _ = after(OuterOptimizer(), start, gradients)
    for c in (0.0, 0.5, 1.0):
        ours, _ = after(OuterOptimizer(name="delayed_nesterov", arrivals=1, c=c), start, gradients)
        assert largest(ours - theirs) < 1e-12


def test_delayed_nesterov_follows_the_formula_for_any_c():
    n, c, lr, beta = 3, 0.2, 0.7, 0.9
    start, gradients = draw(5, SIZE), draw(6, 8, SIZE)
    settings = OuterOptimizer(name="delayed_nesterov", arrivals=n, c=c, lr=lr, momentum=beta)
    ours, buffers = after(settings, start, gradients)
    p, m, d = start.clone(), torch.zeros(SIZE).double(), torch.zeros(SIZE).double()
    for count, g in enumerate(gradients, start=1):
        d = d + g
        if count % n == 0:
            m = beta * m + d / n
            p = p - lr * ((1 - c * n + c) * beta * m + g / n)
            d = torch.zeros_like(d)
        else:
            p = p - lr * (c * beta * m + g / n)
    assert largest(ours - p) < 1e-12
    assert largest(buffers["arrived"] - d) < 1e-12


def test_buffered_takes_one_nesterov_step_on_the_weighted_mean_of_k():
    settings = OuterOptimizer(name="buffered", arrivals=3)
    start, gradients, weights = draw(7, SIZE), draw(8, 7, SIZE), [1.0, 2.0, 5.0, 3.0, 1.0, 4.0, 9.0]
    weighted = [weight * gradient for weight, gradient in zip(weights, gradients, strict=True)]
    ours, buffers = after(settings, start, weighted, weights)
    means = [sum(weighted[:3]) / 8, sum(weighted[3:6]) / 8]
    theirs, _ = after(OuterOptimizer(), start, means)
    assert largest(ours - theirs) < 1e-12
    assert torch.equal(buffers["arrived"], weighted[6])


def test_until_k_have_arrived_the_buffer_alone_changes():
    settings = OuterOptimizer(name="buffered", arrivals=2)
    start = draw(7, SIZE)
    ours, buffers = after(settings, start, draw(8, 1, SIZE))
    assert torch.equal(ours, start)
    assert largest(buffers["momentum"]) == 0


@pytest.mark.parametrize("name", NAMES)
def test_any_cut_into_pieces_gives_the_same_bits_with_every_rule(name):
    settings = OuterOptimizer(name=name, arrivals=3, c=0.1, momentum=0.9)
    start, gradients = draw(9, 1001).float(), draw(10, 4, 1001).float()
    whole, _ = after(settings, start, gradients)
    cut = [
        after(settings, start[at : at + 13], gradients[:, at : at + 13])[0]
        for at in range(0, 1001, 13)
    ]
    assert torch.equal(whole, torch.cat(cut))


def test_a_turn_counts_through_its_strings():
    settings = OuterOptimizer(name="buffered", arrivals=3)
    turn = Turn()
    assert turn.strings() == {}
    for weight in (0.1, 0.2):
        turn = Turn.from_strings(turn.next(weight).left(settings).strings())
    assert (turn.count, turn.weight) == (2, 0.1 + 0.2)
    assert not turn.completes(settings)
    third = turn.next(0.3)
    assert third.completes(settings)
    assert third.left(settings) == Turn()
    assert turn.left(settings) == turn


def test_a_buffer_that_was_filled_for_more_nodes_is_emptied_by_the_next_arrival():
    start, gradients = draw(7, SIZE), draw(8, 4, SIZE)
    parameter, turn = start.clone(), Turn()
    buffers = zeros(OuterOptimizer(name="buffered"), start)
    for arrivals, gradient in zip((5, 5, 5, 3), gradients, strict=True):
        optimizer = OuterOptimizer(name="buffered", arrivals=arrivals)
        outer_step(optimizer, parameter, gradient, buffers, turn := turn.next())
        turn = turn.left(optimizer)
    wanted, _ = after(OuterOptimizer(), start, [gradients.mean(dim=0)])
    assert largest(parameter - wanted) < 1e-12


@pytest.mark.parametrize("text", ["", "[1]", "3", '["a", 1]', "{}", "[1, null]"])
def test_a_malformed_turn_is_an_error_of_the_global(text):
    with pytest.raises(GlobalError, match="outer_turn"):
        Turn.from_strings({"outer_turn": text})


def test_n_and_k_are_the_number_of_nodes_unless_they_are_set():
    plain = DilocoSettings(outer="delayed_nesterov")
    assert OuterOptimizer.of(plain, nodes=5).arrivals == 5
    with pytest.raises(ConfigError, match="how many nodes come is not known"):
        OuterOptimizer.of(plain, nodes=0)
    chosen = DilocoSettings(outer="buffered", outer_arrivals=3)
    assert OuterOptimizer.of(chosen, nodes=5).arrivals == 3


def test_a_forecast_knows_how_much_each_optimizer_remembers():
    for name, buffers in OUTER_BUFFERS.items():
        assert len(buffer_names(OuterOptimizer(name=name))) == buffers


def test_settings_reach_the_optimizer():
    settings = DilocoSettings(
        outer="adam", outer_lr=0.3, outer_momentum=0.8, outer_beta2=0.95, outer_eps=0.2
    )
    wanted = OuterOptimizer(name="adam", lr=0.3, momentum=0.8, arrivals=4, beta2=0.95, eps=0.2)
    assert OuterOptimizer.of(settings, nodes=4) == wanted
    assert OuterOptimizer.of(settings, nodes=0).lr == 0.3
