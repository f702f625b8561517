import pytest
import torch
from torch import nn

from ray_diloco.errors import ConfigError
from ray_diloco.tensors.fragments import mix, split
from ray_diloco.tensors.schema import StateSchema


class Stack(nn.Module):
    """An embedding, six blocks and a head that is the embedding again."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(6))
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight


def names(schema: StateSchema, fragments: int) -> list[list[str]]:
    return [[entry.name for entry in part] for part in split(schema, fragments)]


def test_one_fragment_is_the_whole_schema():
    schema = StateSchema.of(Stack())
    assert split(schema, 1) == (schema,)


def test_layers_are_strided_over_the_fragments():
    parts = names(StateSchema.of(Stack()), 3)
    for place, part in enumerate(parts):
        blocks = {int(name.split(".")[1]) for name in part if name.startswith("blocks")}
        assert blocks == {place, place + 3}


def test_each_entry_is_in_one_fragment_and_ties_stay_together():
    schema = StateSchema.of(Stack())
    parts = names(schema, 3)
    found = [name for part in parts for name in part]
    assert sorted(found) == sorted(entry.name for entry in schema)
    (holder,) = [part for part in parts if "head.weight" in part]
    assert "embedding.weight" in holder


def test_what_has_no_layer_goes_where_there_is_least():
    sizes = [sum(e.numbers for e in part) for part in split(StateSchema.of(Stack()), 3)]
    assert sum(sizes) == 28 * 2 + 6 * 20 + 8
    assert max(sizes) - min(sizes) <= 2 * 28


def test_layers_without_weights_leave_no_holes():
    """A Sequential counts its activations."""
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    assert names(StateSchema.of(model), 2) == [
        ["0.weight", "0.bias", "4.weight", "4.bias"],
        ["2.weight", "2.bias"],
    ]


def test_more_fragments_than_layers_are_refused_with_how_many_there_may_be():
    with pytest.raises(ConfigError, match=r"diloco.fragments.*expected at most 2"):
        split(StateSchema.of(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))), 3)


def test_the_mix_is_what_the_paper_says():
    local, incoming = torch.tensor([1.0, 3.0]), torch.tensor([5.0, -1.0])
    assert torch.equal(mix(local, incoming, 0.5), torch.tensor([3.0, 1.0]))
    assert torch.equal(mix(local, incoming, 0.25), torch.tensor([4.0, 0.0]))
    assert torch.equal(mix(local, incoming, 0.0), incoming)
    assert torch.equal(mix(local, incoming, 1.0), local)
