"""The node's tensors through a checkpoint and back."""

import torch
from node_scene import net, scripted_weights

from ray_diloco.node.weights import Weights


def train(model: torch.nn.Module, amount: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(amount)


def test_the_live_model_returns_to_the_baseline():
    model = net()
    weights = Weights(model, codec="fp32", mismatch="error")
    weights.install(scripted_weights(1), "replace")
    train(model, float("nan"))
    model.norm.num_batches_tracked.add_(5)
    weights.return_to_baseline()
    expected = scripted_weights(1)
    for name, value in model.state_dict().items():
        if name != "norm.num_batches_tracked":
            assert torch.equal(value, expected[name])
    assert model.norm.num_batches_tracked == expected["norm.num_batches_tracked"] + 5


def test_a_delta_after_a_restart_is_the_one_that_would_have_followed(tmp_path):
    model = net()
    weights = Weights(model, codec="fp32", mismatch="error")
    weights.install(scripted_weights(1), "rebase")
    train(model, 0.1)
    weights.save_live(tmp_path / "live")
    weights.save_baseline(tmp_path / "baseline")
    other = net()
    again = Weights(other, codec="fp32", mismatch="error")
    other.load_state_dict(again.read(tmp_path / "live"))
    again.restore(baseline=tmp_path / "baseline", snapshot=None)
    for each, name in ((weights, "one"), (again, "two")):
        each.take_snapshot()
        each.write(tmp_path / name, {})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_job_on_its_way_lands_the_same_after_a_restart(tmp_path):
    """The baseline becomes the snapshot itself, not what is left of a subtraction."""
    model = net()
    weights = Weights(model, codec="fp32", mismatch="error")
    train(model, 0.1)
    weights.take_snapshot()
    weights.write(tmp_path / "delta", {})
    weights.save_baseline(tmp_path / "baseline")
    weights.save_snapshot(tmp_path / "snapshot")
    other = net()
    again = Weights(other, codec="fp32", mismatch="error")
    again.restore(baseline=tmp_path / "baseline", snapshot=tmp_path / "snapshot")
    other.load_state_dict(again.read(tmp_path / "snapshot"))
    again.advance(tmp_path / "delta")
    again.take_snapshot()
    assert again.write(tmp_path / "nothing", {}).zero
