import torch

from ray_diloco.workload.models import build_model
from ray_diloco.workload.settings import ModelSettings


def test_a_token_is_predicted_from_its_window_alone():
    model = build_model(ModelSettings(name="mlp", window=3), seed=0)
    tokens = torch.randint(256, (2, 10), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 256
    before, after = model(tokens), model(changed)
    differs = (before != after).any(-1).any(0)
    assert before.shape == (2, 10, 256)
    assert differs.tolist() == [False] * 4 + [True] * 3 + [False] * 3


def test_sizes_and_single_fields_fix_the_shape():
    model = build_model(ModelSettings(name="mlp", size="mini", hidden=64, vocabulary=300), seed=0)
    assert [tuple(layer.weight.shape) for layer in model.layers] == [(64, 256), (64, 64)]
    assert model.out.weight.shape == (300, 64)
