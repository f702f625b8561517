import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from ray_diloco.errors import GlobalError, UsageError
from ray_diloco.tensors.safetensors_reader import read_header
from ray_diloco.tensors.schema import StateSchema


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("seen", torch.tensor([True, False]))
        self.register_buffer("phase", torch.ones(2, dtype=torch.complex64))
        self.register_buffer("cache", torch.ones(9), persistent=False)


def test_a_schema_lists_the_state_in_its_order():
    module = Tied()
    schema = StateSchema.of(module)
    assert [entry.name for entry in schema] == list(module.state_dict())
    kinds = {entry.name: entry.kind for entry in schema}
    assert kinds["phase"] == kinds["embedding.weight"] == "floating"
    assert kinds["seen"] == kinds["norm.num_batches_tracked"] == "integer"


def test_tied_tensors_are_found_by_their_storage():
    schema = StateSchema.of(Tied())
    ties = {entry.name: entry.tied_to for entry in schema if entry.tied_to}
    assert ties == {"head.weight": "embedding.weight"}
    assert "head.weight" not in [entry.name for entry in schema.distinct]
    assert "head.weight" in [entry.name for entry in schema.floating]


@pytest.mark.parametrize("layer", [nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm])
def test_statistics_are_the_running_values_of_batch_norm_layers(layer):
    schema = StateSchema.of(nn.Sequential(nn.Linear(2, 2), layer(2)))
    assert schema.statistics == ("1.running_mean", "1.running_var")


def test_a_buffer_is_no_statistic_by_its_name_alone():
    module = nn.Module()
    module.register_buffer("running_mean", torch.zeros(2))
    assert StateSchema.of(module).statistics == ()
    assert StateSchema.of(nn.BatchNorm1d(2, track_running_stats=False)).statistics == ()


def test_a_batch_norm_that_is_the_whole_model_has_statistics():
    assert StateSchema.of(nn.BatchNorm1d(2)).statistics == ("running_mean", "running_var")


def test_the_fingerprint_is_of_names_shapes_and_dtypes_in_any_order():
    state = {"a": torch.ones(2, 3), "b": torch.ones(1, dtype=torch.bfloat16)}

    def print_of(state):
        return StateSchema.of_state(state).fingerprint

    assert print_of(state) == print_of(dict(reversed(state.items())))
    assert print_of(state) != print_of({**state, "a": torch.ones(3, 2)})
    assert print_of(state) != print_of({**state, "b": torch.ones(1)})
    assert print_of(state) != print_of({"a": state["a"], "c": state["b"]})
    # frozen: another value would refuse the deltas of every node with an earlier version
    assert print_of({"w": torch.zeros(2)}) == (
        "bd1aad35eeb7344a052f0260f567964f48639aaf471fe3e713d37ad0cf006cd0"
    )


def test_a_file_gives_the_fingerprint_of_the_model_that_it_came_from(tmp_path):
    module = Tied()
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    save_file(state, tmp_path / "g")
    found = StateSchema.of_described(
        read_header(tmp_path / "g").tensors, statistics=StateSchema.of(module).statistics
    )
    assert found.fingerprint == StateSchema.of(module).fingerprint
    assert set(found.statistics) == {"norm.running_mean", "norm.running_var"}


def test_a_global_of_another_model_is_an_error_that_names_what_differs():
    schema = StateSchema.of_state({"a": torch.ones(2), "b": torch.ones(2), "n": torch.tensor(1)})
    found = {"a": torch.ones(3), "n": torch.tensor(1.0), "z": torch.ones(1)}
    with pytest.raises(GlobalError) as caught:
        schema.check(found)
    for part in (
        "a has shape [3], expected [2]",
        "b is missing",
        "n has dtype torch.float32",
        "z is not an entry of the model",
    ):
        assert part in str(caught.value)


def test_with_ignore_the_names_that_do_not_fit_keep_their_local_value():
    schema = StateSchema.of_state({"a": torch.ones(2), "b": torch.ones(2)})
    found = {"a": torch.ones(3), "b": torch.ones(2), "z": torch.ones(1)}
    assert schema.check(found, mismatch="ignore") == {"a"}
    assert schema.check({"a": torch.ones(2).half(), "b": torch.ones(2)}) == frozenset()


def test_what_cannot_be_exchanged_is_named():
    flat = torch.ones(6)
    for state, reason in (
        ({"x": torch.ones(1, dtype=torch.complex128)}, "x: torch.complex128 cannot be stored"),
        ({"x": "text"}, "x is a str"),
        ({"__metadata__": flat}, "__metadata__ is a word of the file format"),
        ({"x": torch.ones(1).expand(3)}, "x is an expanded view"),
        ({"x": torch.ones(2).to_sparse()}, "x has layout torch.sparse_coo"),
        ({"x": flat[:4], "y": flat[3:]}, "x and y share a part of their memory"),
    ):
        with pytest.raises(UsageError, match=reason):
            StateSchema.of_state(state)


def test_neighbours_in_one_storage_are_no_tie():
    flat = torch.ones(6)
    schema = StateSchema.of_state({"x": flat[:3], "y": flat[3:]})
    assert [entry.tied_to for entry in schema] == [None, None]
