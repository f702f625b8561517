from importlib.util import find_spec

import pytest
import torch

from ray_diloco.errors import ConfigError
from ray_diloco.workload.evaluation import evaluate
from ray_diloco.workload.loss import batch_loss
from ray_diloco.workload.models import build_model
from ray_diloco.workload.outline import estimate_bytes
from ray_diloco.workload.settings import ModelSettings

pytestmark = pytest.mark.skipif(
    find_spec("transformers") is None, reason="needs the extra hf; runs in .ci/run"
)
GPT2 = {
    **{"model_type": "gpt2", "vocab_size": 256, "n_positions": 32, "n_embd": 16, "n_layer": 1},
    **{"n_head": 2, "bos_token_id": 0, "eos_token_id": 0},
}
LLAMA = {
    **{"model_type": "llama", "vocab_size": 256, "hidden_size": 16, "intermediate_size": 32},
    **{"num_hidden_layers": 1, "num_attention_heads": 2, "tie_word_embeddings": True},
}


def hf(config, **settings) -> ModelSettings:
    return ModelSettings(name="hf", config=config, **settings)


@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=lambda config: config["model_type"])
def test_a_model_from_its_configuration_makes_a_loss_of_a_token_batch(config):
    model = build_model(hf(config), seed=0)
    assert model.training
    batch = torch.randint(256, (2, 17), generator=torch.Generator().manual_seed(0))
    batch_loss(model, batch).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert evaluate(model, [batch]) == pytest.approx(5.545, abs=0.2)


@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=lambda config: config["model_type"])
def test_tied_weights_stay_tied_also_in_another_dtype(config):
    state = build_model(hf(config, dtype="bfloat16"), seed=0).state_dict()
    shared = {value.data_ptr() for value in state.values()}
    assert len(shared) == len(state) - 1
    assert estimate_bytes(hf(config)) == sum(value.numel() * 4 for value in state.values())


def test_weights_come_from_the_seed_alone():
    before = torch.get_rng_state()
    one, same, other = (next(build_model(hf(GPT2), seed=seed).parameters()) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_folder_gives_its_configuration_and_if_asked_its_weights(tmp_path):
    saved = build_model(hf(GPT2), seed=5)
    saved.save_pretrained(tmp_path)
    fresh, loaded = (
        build_model(hf({}, source=str(tmp_path), pretrained=pretrained), seed=0)
        for pretrained in (False, True)
    )
    pairs = zip(saved.parameters(), loaded.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert fresh.config.n_embd == 16
    assert not torch.equal(next(fresh.parameters()), next(saved.parameters()))


def test_what_transformers_does_not_know_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"model\.config="):
        build_model(hf({"model_type": "no such model"}), seed=0)
    with pytest.raises(ConfigError, match=r"model\.source="):
        build_model(hf({}, source=str(tmp_path)), seed=0)
