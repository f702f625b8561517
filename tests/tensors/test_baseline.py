import pytest
import torch
from torch import nn

from ray_diloco.tensors.baseline import (
    advance,
    advance_to_snapshot,
    advance_with_decay,
    carry_along,
    fold_back,
    rebase,
    replace,
)
from ray_diloco.tensors.delta_file import DeltaReader, write_delta
from ray_diloco.tensors.schema import StateSchema
from ray_diloco.tensors.snapshot import allocate, capture


def baseline_of(state, schema):
    buffers = allocate(schema, in_promoted_dtype=True)
    capture(state, buffers, schema)
    return buffers


def sent(tmp_path, baseline, current, schema) -> DeltaReader:
    write_delta(tmp_path / "d", baseline=baseline, current=current, schema=schema, header={})
    return DeltaReader(tmp_path / "d", schema=schema, codec="fp32", path="p")


def test_rebase_keeps_what_was_not_sent_on_top_of_the_global():
    live = {"w": torch.tensor([5.0, 5.0])}
    schema = StateSchema.of_state(live)
    baseline = {"w": torch.tensor([4.0, 7.0])}
    rebase(live, baseline, {"w": torch.tensor([10.0, 20.0])}, schema)
    assert live["w"].tolist() == [11.0, 18.0]
    assert baseline["w"].tolist() == [10.0, 20.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
def test_rebase_is_computed_in_the_baselines_dtype(dtype):
    generator = torch.Generator().manual_seed(0)

    def make():
        return torch.randn(70_000, generator=generator).to(dtype)

    live, incoming = {"w": make()}, {"w": make()}
    schema = StateSchema.of_state(live)
    baseline = baseline_of({"w": make()}, schema)
    wide = baseline["w"].dtype
    expected = incoming["w"].to(wide) - (baseline["w"] - live["w"].to(wide))
    rebase(live, baseline, incoming, schema)
    assert torch.equal(live["w"], expected.to(dtype))
    assert torch.equal(baseline["w"], incoming["w"].to(wide))


@pytest.mark.parametrize("install", [rebase, replace])
def test_an_installation_writes_into_the_live_model_and_each_tie_once(install):
    module = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False), "b": nn.Linear(3, 3, bias=False)})
    module["b"].weight = module["a"].weight
    live = module.state_dict()
    schema = StateSchema.of(module)
    baseline = baseline_of(live, schema)
    with torch.no_grad():
        module["a"].weight.add_(1)
    place = module["a"].weight.data_ptr()
    incoming = {name: torch.full((3, 3), 2.0) for name in live}
    install(live, baseline, incoming, schema)
    assert module["a"].weight is module["b"].weight
    assert module["a"].weight.data_ptr() == place
    expected = torch.full((3, 3), 3.0 if install is rebase else 2.0)
    torch.testing.assert_close(module["b"].weight.detach(), expected)
    assert torch.equal(baseline["b.weight"], incoming["b.weight"])


def test_a_live_tensor_in_another_memory_format_is_rebased():
    live = {"w": torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)}
    schema = StateSchema.of_state(live)
    baseline = {"w": torch.zeros(2, 3, 4, 5)}
    incoming = {"w": torch.arange(120.0).view(2, 3, 4, 5)}
    rebase(live, baseline, incoming, schema)
    assert torch.equal(live["w"], incoming["w"] + 1)
    assert live["w"].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("install", [rebase, replace])
def test_statistics_take_the_globals_value(install):
    module = nn.BatchNorm1d(2)
    live, schema = module.state_dict(), StateSchema.of(module)
    baseline = baseline_of(live, schema)
    module(torch.randn(8, 2))
    incoming = {name: tensor.clone() for name, tensor in live.items()}
    incoming["running_var"] = torch.tensor([0.25, 4.0])
    install(live, baseline, incoming, schema)
    assert module.running_var.tolist() == [0.25, 4.0]
    assert baseline["running_var"].tolist() == [0.25, 4.0]


@pytest.mark.parametrize("install", [rebase, replace])
def test_local_counters_go_on_where_the_global_did_not_change(install):
    live = {"n": torch.tensor([7, 7]), "flag": torch.tensor([True, True])}
    schema = StateSchema.of_state(live)
    previous = {"n": torch.tensor([0, 0]), "flag": torch.tensor([False, True])}
    incoming = {"n": torch.tensor([0, 3]), "flag": torch.tensor([False, False])}
    install(live, previous, incoming, schema)
    assert live["n"].tolist() == [7, 3]
    assert live["flag"].tolist() == [True, False]
    assert previous["n"].tolist() == [0, 3]


def test_entries_that_are_kept_stay_as_they_are():
    live, baseline = {"w": torch.ones(2)}, {"w": torch.zeros(2)}
    schema = StateSchema.of_state(live)
    replace(live, baseline, {}, schema, keep=frozenset({"w"}))
    assert live["w"].tolist() == [1.0, 1.0]
    assert baseline["w"].tolist() == [0.0, 0.0]


def test_the_baseline_advances_by_what_was_sent(tmp_path):
    shared = torch.ones(2)
    baseline = {"a": shared.clone(), "c": torch.tensor([1.0 + 1.0j])}
    current = {"a": torch.tensor([0.5, 3.0]), "c": torch.tensor([2.0 - 1.0j])}
    schema = StateSchema.of_state(current)
    with sent(tmp_path, baseline, current, schema) as delta:
        advance(baseline, delta, schema)
    assert baseline["a"].tolist() == [0.5, 3.0]
    assert baseline["c"].tolist() == [2.0 - 1.0j]


def test_a_tied_baseline_advances_once(tmp_path):
    shared = torch.ones(2)
    current = {"a": shared, "b": shared}
    schema = StateSchema.of_state(current)
    baseline = baseline_of(current, schema)
    shared.add_(1)
    with sent(tmp_path, baseline, current, schema) as delta:
        advance(baseline, delta, schema)
    assert baseline["b"].tolist() == [2.0, 2.0]


def test_statistics_and_counters_of_the_baseline_move_only_with_a_global(tmp_path):
    module = nn.BatchNorm1d(2)
    live, schema = module.state_dict(), StateSchema.of(module)
    baseline = baseline_of(live, schema)
    with torch.no_grad():
        module.weight.add_(1)
    module(torch.randn(8, 2))
    with sent(tmp_path, baseline, live, schema) as delta:
        advance(baseline, delta, schema)
    assert baseline["weight"].tolist() == [2.0, 2.0]
    assert baseline["running_var"].tolist() == [1.0, 1.0]
    advance_to_snapshot(baseline, live, schema)
    assert baseline["running_mean"].tolist() == [0.0, 0.0]
    assert baseline["num_batches_tracked"].item() == 0


def test_a_lossless_landing_without_an_installation_is_exactly_the_snapshot():
    snapshot = {"w": torch.tensor([1e-8]).bfloat16()}
    schema = StateSchema.of_state(snapshot)
    baseline = {"w": torch.tensor([1e8])}
    advance_to_snapshot(baseline, snapshot, schema)
    assert torch.equal(baseline["w"], snapshot["w"].float())


def test_a_landing_hands_buffers_over_ties_included():
    shared = torch.ones(2)
    current = {"a": shared, "b": shared}
    schema = StateSchema.of_state(current)
    baseline, snapshot = baseline_of(current, schema), baseline_of(current, schema)
    snapshot["a"].add_(1)
    sent_buffer = snapshot["a"].data_ptr()
    advance_to_snapshot(baseline, snapshot, schema)
    assert baseline["a"] is baseline["b"]
    assert baseline["a"].data_ptr() == sent_buffer != snapshot["a"].data_ptr()
    assert baseline["b"].tolist() == [2.0, 2.0]


@pytest.mark.parametrize("install", [rebase, replace])
def test_an_installation_takes_over_the_tensors_of_the_global(install):
    live = {"w": torch.ones(3), "h": torch.ones(3).bfloat16()}
    schema = StateSchema.of_state(live)
    baseline = baseline_of(live, schema)
    incoming = {"w": torch.full((3,), 2.0), "h": torch.full((3,), 2.0).bfloat16()}
    install(live, baseline, incoming, schema)
    live["w"].zero_()
    assert baseline["w"] is incoming["w"]
    assert baseline["h"].dtype == torch.float32
    assert baseline["h"].tolist() == baseline["w"].tolist() == [2.0, 2.0, 2.0]


def test_a_refused_job_is_folded_back_into_the_live_model(tmp_path):
    module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.BatchNorm1d(2)).bfloat16()
    live, schema = module.state_dict(), StateSchema.of(module)
    baseline = baseline_of(live, schema)
    current = {name: tensor.clone() for name, tensor in live.items()}
    current["0.weight"] += 1
    current["1.running_var"] += 1
    with sent(tmp_path, baseline, current, schema) as delta:
        nn.init.zeros_(module[0].weight)
        fold_back(live, delta, schema)
    expected = current["0.weight"].float() - baseline["0.weight"]
    assert torch.equal(module[0].weight.detach(), expected.bfloat16())
    assert module[1].running_var.tolist() == [1.0, 1.0]


def test_with_decay_a_share_of_the_codecs_error_is_given_up(tmp_path):
    baseline = {"w": torch.linspace(-1, 1, 200)}
    snapshot = {"w": torch.zeros(200)}
    schema = StateSchema.of_state(baseline)
    plain, kept = {"w": baseline["w"].clone()}, {"w": baseline["w"].clone()}
    write_delta(
        tmp_path / "d",
        baseline=baseline,
        current=snapshot,
        schema=schema,
        header={},
        codec="int4",
    )
    with DeltaReader(tmp_path / "d", schema=schema, codec="int4", path="p") as delta:
        advance(plain, delta, schema)
        advance_with_decay(kept, delta, schema, snapshot=snapshot, decay=0.75)
    error = plain["w"] - snapshot["w"]
    assert float(error.abs().max()) > 0.01
    assert torch.allclose(kept["w"] - snapshot["w"], 0.75 * error)


def test_an_installation_carries_the_snapshot_along():
    baseline, snapshot = {"w": torch.tensor([4.0, 7.0])}, {"w": torch.tensor([3.0, 9.0])}
    schema = StateSchema.of_state(baseline)
    carry_along(snapshot, baseline, {"w": torch.tensor([10.0, 20.0])}, schema)
    assert snapshot["w"].tolist() == [9.0, 22.0]
