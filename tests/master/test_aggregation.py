from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ray_diloco.master.aggregation import (
    FetchedDelta,
    OpenDelta,
    PieceBuffers,
    in_merge_order,
    is_variance,
)
from ray_diloco.protocol.delta_card import DeltaCard
from ray_diloco.tensors.delta_file import DeltaReader
from ray_diloco.tensors.dtypes import pieces
from ray_diloco.tensors.schema import Entry, StateSchema


def opened(folder: Path, tensors: list[torch.Tensor]) -> tuple[Entry, list[OpenDelta]]:
    schema = StateSchema.of_state({"w": tensors[0]})
    deltas = []
    for place, tensor in enumerate(tensors):
        card = DeltaCard(node_id=f"n{place}", local_step=1, base_outer_step=0)
        file = folder / f"{place}.safetensors"
        save_file({"w": tensor}, file, metadata=card.header())
        path = f"nodes/n{place}/delta_1.safetensors"
        reader = DeltaReader(file, schema=schema, codec="fp32", path=path)
        deltas.append(OpenDelta(FetchedDelta(path=path, file=file, card=card), reader))
    return schema.entries[0], deltas


def mean_of(entry: Entry, deltas: list[OpenDelta]) -> torch.Tensor:
    buffers = PieceBuffers()
    mean = torch.empty(entry.numbers)
    for start, stop in pieces(entry.numbers):
        mean[start:stop] = buffers.mean(deltas, entry, start, stop)
    for each in deltas:
        each.reader.close()
    return mean


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_the_mean_is_the_float32_sum_in_order_divided_by_the_count(tmp_path, count):
    generator = torch.Generator().manual_seed(count)
    tensors = [torch.randn(70_001, generator=generator) * 10**place for place in range(count)]
    mean = mean_of(*opened(tmp_path, tensors))
    assert torch.equal(mean, sum(tensors) / count)


def test_the_sign_of_a_zero_is_that_of_the_plain_sum(tmp_path):
    tensors = [torch.tensor([-0.0, 1.0, -0.0]), torch.tensor([-0.0, -1.0, 0.0])]
    mean = mean_of(*opened(tmp_path, tensors))
    assert torch.equal(torch.signbit(mean), torch.signbit(sum(tensors) / 2))


def test_the_same_pass_finds_each_norm(tmp_path):
    entry, deltas = opened(tmp_path, [torch.full((100_000,), 3.0), torch.zeros(100_000)])
    mean_of(entry, deltas)
    assert deltas[0].tally.norm == pytest.approx(3.0 * 100_000**0.5)
    assert [each.tally.zero for each in deltas] == [False, True]


def test_deltas_are_added_in_the_order_of_node_step_and_path():
    def fetched(node: str, step: int) -> FetchedDelta:
        card = DeltaCard(node_id=node, local_step=step, base_outer_step=0)
        return FetchedDelta(path=f"nodes/{node}/delta_{step}", file=Path("x"), card=card)

    mixed = [fetched("b", 2), fetched("a", 100), fetched("b", 1), fetched("a", 20)]
    order = [(each.card.node_id, each.card.local_step) for each in in_merge_order(mixed)]
    assert order == [("a", 20), ("a", 100), ("b", 1), ("b", 2)]


def test_a_running_variance_is_told_by_its_name_and_its_layer():
    described = {"shape": (2,), "dtype": torch.float32}
    assert is_variance(Entry(name="a.running_var", statistics=True, **described))
    assert not is_variance(Entry(name="a.running_mean", statistics=True, **described))
    assert not is_variance(Entry(name="a.running_var", **described))
