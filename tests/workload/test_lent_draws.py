import torch

from ray_diloco.workload.lent_draws import LentDraws
from ray_diloco.workload.seeds import derived_seed, generator_for

_CPU = torch.device("cpu")


def draw(draws):
    with draws.lent():
        return torch.rand(3)


def test_lent_draws_continue_their_own_sequence_whatever_others_draw():
    undisturbed, disturbed = LentDraws(1, _CPU), LentDraws(1, _CPU)
    expected = [draw(undisturbed) for _ in range(2)]
    first = draw(disturbed)
    torch.rand(5)
    torch.testing.assert_close([first, draw(disturbed)], expected)
    assert not torch.equal(*expected)


def test_the_global_generator_is_as_it_was():
    before = torch.get_rng_state()
    draw(LentDraws(1, _CPU))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_saved_sequence_goes_on():
    draws, other = LentDraws(1, _CPU), LentDraws(2, _CPU)
    draw(draws)
    other.load_state_dict(draws.state_dict())
    torch.testing.assert_close(draw(other), draw(draws))


def test_every_purpose_has_its_own_seed():
    seeds = [derived_seed(seed, "data", node) for seed in range(3) for node in range(3)]
    assert len({*seeds, derived_seed(0, "model")}) == 10
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_seed_is_the_same_on_every_machine():
    assert derived_seed(0, "data", 1) == 6165688211217004550
    assert generator_for(0, "data", 1).initial_seed() == derived_seed(0, "data", 1)
