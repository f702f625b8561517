import pytest
import torch
from safetensors.torch import save_file

from ray_diloco.errors import ConfigError
from ray_diloco.workload.models import build_model, check_starting_weights
from ray_diloco.workload.settings import ModelSettings

SMALL = {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "hidden": 8}


def state_of(settings, seed=1):
    return {k: v.clone() for k, v in build_model(settings, seed=seed).state_dict().items()}


def test_a_model_starts_from_the_file_whatever_its_seed(tmp_path):
    state = state_of(ModelSettings(**SMALL))
    save_file(state, tmp_path / "w.safetensors")
    settings = ModelSettings(**SMALL, weights=str(tmp_path / "w.safetensors"))
    check_starting_weights(settings)
    for name, value in state_of(settings, seed=2).items():
        assert torch.equal(value, state[name])


@pytest.mark.parametrize("width", [32, None])
def test_a_file_of_another_model_is_refused_with_the_first_entry_that_differs(width, tmp_path):
    save_file(state_of(ModelSettings(**SMALL)), tmp_path / "w.safetensors")
    other = ModelSettings(**(SMALL | {"width": width}), weights=str(tmp_path / "w.safetensors"))
    with pytest.raises(ConfigError, match=r"model\.weights.*expected .* with shape"):
        check_starting_weights(other)


@pytest.mark.parametrize("content", [None, b"no tensors"])
def test_a_file_that_is_none_is_refused(content, tmp_path):
    path = tmp_path / "w.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"model\.weights"):
        check_starting_weights(ModelSettings(**SMALL, weights=str(path)))
