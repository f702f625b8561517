import pytest
import torch

from ray_diloco.workload.models import build_model
from ray_diloco.workload.outline import estimate_bytes
from ray_diloco.workload.settings import ModelSettings


@pytest.mark.parametrize("name", ["cnn", "perceptron"])
@pytest.mark.parametrize("size", ["tiny", "mini", "small"])
def test_logits_have_a_number_for_each_class(name, size):
    settings = ModelSettings(name=name, size=size, channels=3, classes=7, image_size=16)
    model = build_model(settings, seed=0)
    assert model(torch.zeros(2, 3, 16, 16)).shape == (2, 7)
    stored = sum(value.nbytes for value in model.state_dict().values())
    assert estimate_bytes(settings) == stored


@pytest.mark.parametrize("name", ["cnn", "perceptron"])
def test_weights_come_from_the_seed_alone(name):
    settings = ModelSettings(name=name)
    before = torch.get_rng_state()
    one, same, other = (build_model(settings, seed=seed).out.weight for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_cnn_brings_statistics_and_counters():
    state = build_model(ModelSettings(name="cnn"), seed=0).state_dict()
    assert {"norms.0.running_var", "norms.0.num_batches_tracked"} <= state.keys()
