import torch
from safetensors.torch import save_file

from ray_diloco.tensors.safetensors_reader import SafetensorsReader
from ray_diloco.tensors.schema import StateSchema
from ray_diloco.tensors.snapshot import allocate, capture, load


def tied_state():
    shared = torch.randn(2, 3)
    return {"a": shared, "b": shared, "h": torch.randn(4).bfloat16(), "n": torch.tensor(3)}


def test_buffers_have_the_shapes_dtypes_and_ties_of_the_state():
    state = tied_state()
    buffers = allocate(StateSchema.of_state(state))
    assert buffers["a"] is buffers["b"]
    assert {name: (t.shape, t.dtype) for name, t in buffers.items()} == {
        name: (t.shape, t.dtype) for name, t in state.items()
    }


def test_a_baseline_holds_halves_in_float32():
    state = {"h": torch.ones(2).half(), "d": torch.ones(2).double(), "c": torch.ones(2).cfloat()}
    buffers = allocate(StateSchema.of_state(state), in_promoted_dtype=True)
    assert [t.dtype for t in buffers.values()] == [torch.float32, torch.float64, torch.complex64]


def test_a_captured_state_does_not_follow_the_model():
    state = tied_state()
    schema = StateSchema.of_state(state)
    buffers = allocate(schema, in_promoted_dtype=True)
    capture(state, buffers, schema)
    before = state["a"].clone()
    state["a"].add_(1)
    assert torch.equal(buffers["b"], before)
    assert torch.equal(buffers["h"], state["h"].float())
    assert buffers["n"].item() == 3


def test_a_state_in_another_memory_format_is_captured_by_value():
    state = {"w": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)}
    schema = StateSchema.of_state(state)
    buffers = allocate(schema)
    capture(state, buffers, schema)
    assert buffers["w"].is_contiguous()
    assert torch.equal(buffers["w"], state["w"])


def test_a_global_is_loaded_into_buffers_whatever_its_float_dtype(tmp_path):
    state = tied_state()
    schema = StateSchema.of_state(state)
    written = {
        "a": state["a"].double(),
        "b": state["a"].double(),
        "h": state["h"].float(),
        "n": torch.tensor(9, dtype=torch.int32),
    }
    save_file({name: tensor.clone() for name, tensor in written.items()}, tmp_path / "g")
    buffers = allocate(schema)
    with SafetensorsReader(tmp_path / "g") as reader:
        assert schema.check(reader.header.tensors) == frozenset()
        load(reader, buffers, schema)
    assert torch.equal(buffers["b"], state["a"])
    assert torch.equal(buffers["h"], state["h"])
    assert buffers["n"].item() == 9


def test_entries_that_are_kept_are_not_loaded(tmp_path):
    schema = StateSchema.of_state({"a": torch.ones(2), "b": torch.ones(2)})
    save_file({"b": torch.zeros(2)}, tmp_path / "g")
    buffers = {"a": torch.ones(2), "b": torch.ones(2)}
    with SafetensorsReader(tmp_path / "g") as reader:
        keep = schema.check(reader.header.tensors, mismatch="ignore")
        load(reader, buffers, schema, keep=keep)
    assert buffers["a"].tolist() == [1.0, 1.0]
    assert buffers["b"].tolist() == [0.0, 0.0]
