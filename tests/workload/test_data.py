import itertools

import pytest
import torch

from ray_diloco.errors import ConfigError
from ray_diloco.workload.data import (
    build_data,
    evaluation_batches,
    shard_tokens,
    training_stream,
)
from ray_diloco.workload.settings import DataSettings

_SYNTHETIC = DataSettings(name="synthetic", synthetic_bytes=50_000, sequence_length=16)


def streams(settings, nodes, seed=0):
    corpus = build_data(settings)
    return [
        training_stream(corpus, settings, node_index=node, nodes=nodes, seed=seed)
        for node in range(nodes)
    ]


def first_batches(stream, count=3):
    return torch.cat(list(itertools.islice(stream, count)))


@pytest.mark.parametrize("shard", ["iid", "contiguous", "group", "dirichlet", "shared"])
def test_no_two_nodes_see_the_same_stream(shard):
    settings = DataSettings(name="synthetic", synthetic_bytes=50_000, shard=shard)
    one, other = (first_batches(stream) for stream in streams(settings, 2))
    assert not torch.equal(one, other)


def test_shards_add_up_to_the_training_text():
    corpus = build_data(_SYNTHETIC)
    total = sum(len(document.text) for document in corpus.training)
    assert sum(shard_tokens(stream) for stream in streams(_SYNTHETIC, 3)) == total


def test_a_node_may_have_its_own_batch_size():
    stream = training_stream(
        build_data(_SYNTHETIC), _SYNTHETIC, node_index=0, nodes=2, seed=0, batch_size=3
    )
    assert next(iter(stream)).shape == (3, 17)


def test_held_out_batches_are_always_the_same():
    once, again = (evaluation_batches(build_data(_SYNTHETIC), _SYNTHETIC) for _ in range(2))
    assert [batch.shape for batch in once] == [(16, 17)] * 8
    assert torch.equal(torch.cat(once), torch.cat(again))


def test_no_held_out_window_is_in_any_shard():
    corpus = build_data(_SYNTHETIC)
    shards = [stream._text.numpy().tobytes() for stream in streams(_SYNTHETIC, 2)]
    for batch in evaluation_batches(corpus, _SYNTHETIC):
        for window in batch.to(torch.uint8):
            assert not any(window.numpy().tobytes() in shard for shard in shards)


def test_own_files_can_be_trained_on(tmp_path):
    (tmp_path / "a.txt").write_bytes(bytes(range(256)) * 8)
    settings = DataSettings(
        name="text", files=[f"{tmp_path}/*.txt"], sequence_length=16, held_out_fraction=0.1
    )
    (stream,) = streams(settings, 1)
    assert next(iter(stream)).shape == (8, 17)


def test_too_little_held_out_text_is_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes(bytes(1000))
    settings = DataSettings(name="text", files=[f"{tmp_path}/a.txt"], sequence_length=128)
    with pytest.raises(ConfigError, match=r"data\.held_out_fraction"):
        build_data(settings)


def test_custom_data_has_a_manifest_of_its_target_and_arguments():
    manifests = {
        build_data(DataSettings(name="custom", custom={"_target_": "a.b", "size": size})).manifest
        for size in (1, 2)
    }
    assert len(manifests) == 2
