import pytest
import torch
from safetensors import safe_open
from torch import nn

from ray_diloco.node.weights import Weights

INT4_ERROR = 0.5 / 7


def trained(codec: str, decay: float = 1.0) -> tuple[nn.Linear, Weights, torch.Tensor]:
    """A model that moved away from its baseline, and by how much."""
    model = nn.Linear(20, 20, bias=False)
    weights = Weights(model, codec=codec, codec_decay=decay, mismatch="error")
    change = torch.randn(20, 20, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.weight += change
    weights.take_snapshot()
    return model, weights, change


def unsent(weights: Weights, tmp_path) -> torch.Tensor:
    """What the next delta would hold."""
    weights.take_snapshot()
    exact = Weights(nn.Linear(20, 20, bias=False), codec="fp32", mismatch="error")
    weights.save_baseline(tmp_path / "b")
    weights.save_snapshot(tmp_path / "s")
    return exact.read(tmp_path / "b")["weight"] - exact.read(tmp_path / "s")["weight"]


def test_the_header_names_the_codec(tmp_path):
    _, weights, _ = trained("int8")
    weights.write(tmp_path / "d", {"algorithm": "x", "codec": "fp32"})
    with safe_open(tmp_path / "d", "pt") as file:
        assert file.metadata()["codec"] == "int8"


@pytest.mark.parametrize("decay", [1.0, 0.5, 0.0])
def test_the_codecs_error_goes_out_with_the_next_delta_as_far_as_it_does_not_decay(tmp_path, decay):
    _, kept, change = trained("int4")
    kept.write(tmp_path / "d", {})
    kept.advance(tmp_path / "d")
    error = unsent(kept, tmp_path)
    assert 0 < float(error.abs().max()) <= INT4_ERROR * float(change.abs().max()) + 1e-6
    _, decayed, _ = trained("int4", decay)
    decayed.write(tmp_path / "d", {})
    decayed.advance(tmp_path / "d")
    assert torch.allclose(unsent(decayed, tmp_path), decay * error, atol=1e-6)


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_an_installation_in_between_changes_nothing_of_that(tmp_path, decay):
    errors = []
    for installs in (False, True):
        _, weights, _ = trained("topk_8", decay)
        weights.write(tmp_path / "d", {})
        if installs:
            weights.install({"weight": torch.full((20, 20), 3.0)}, "rebase")
        assert weights.snapshot_holds is (decay < 1 or not installs)
        weights.advance(tmp_path / "d")
        errors.append(unsent(weights, tmp_path))
    assert torch.allclose(*errors, atol=1e-6)
