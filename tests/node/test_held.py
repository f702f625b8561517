import torch

from ray_diloco.node.held import Held


def test_what_is_held_does_not_follow_the_state():
    state = {"step": 3, "groups": [{"lr": 0.1}], "moments": {0: {"m": torch.ones(2, 3)}}}
    held = Held().hold(state)
    state["moments"][0]["m"].zero_()
    state["groups"][0]["lr"] = 0.2
    assert held["groups"] == [{"lr": 0.1}]
    assert held["moments"][0]["m"].tolist() == [[1.0] * 3] * 2


def test_the_memory_is_kept_for_the_next_time_where_it_fits():
    keeper = Held()
    first = keeper.hold({"a": torch.ones(4), "b": torch.ones(4)})
    second = keeper.hold({"a": torch.zeros(4), "b": torch.zeros(5)})
    assert second["a"].data_ptr() == first["a"].data_ptr()
    assert second["a"].tolist() == [0.0] * 4
    assert second["b"].tolist() == [0.0] * 5


def test_a_held_optimizer_goes_on_as_the_live_one(tmp_path):
    layer = torch.nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    torch.save(Held().hold(optimizer.state_dict()), tmp_path / "held")
    saved = torch.load(tmp_path / "held", weights_only=True)
    other = torch.optim.AdamW(torch.nn.Linear(3, 3).parameters())
    other.load_state_dict(saved)
    for mine, its in zip(optimizer.state.values(), other.state.values(), strict=True):
        assert torch.equal(mine["exp_avg"], its["exp_avg"])
        assert torch.equal(mine["step"], its["step"])
