from collections import Counter

import numpy as np
import pytest

from ray_diloco.errors import ConfigError
from ray_diloco.workload.documents import Document
from ray_diloco.workload.settings import DataSettings
from ray_diloco.workload.sharding import hold_out, shard_text

_WORD = 4


def numbered(documents=12, words=100, groups=6):
    """Documents made of four-byte words, each of which occurs once in all."""
    count = iter(range(documents * words))
    return [
        Document(
            name=f"{number}.txt",
            group=f"group{number * groups // documents}",
            text=b"".join(next(count).to_bytes(_WORD, "big") for _ in range(words)),
        )
        for number in range(documents)
    ]


def words_of(text):
    return Counter(np.frombuffer(text, dtype=">u4").tolist())


def shards(settings, nodes, documents=None, seed=0):
    documents = documents or numbered()
    return [
        shard_text(documents, settings, node_index=node, nodes=nodes, seed=seed)
        for node in range(nodes)
    ]


@pytest.mark.parametrize("rule", ["iid", "contiguous", "group"])
@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
def test_shards_hold_every_byte_exactly_once(rule, nodes):
    settings = DataSettings(shard=rule, block_bytes=16, sequence_length=8)
    dealt = sum((words_of(shard) for shard in shards(settings, nodes)), Counter())
    assert dealt == words_of(b"".join(document.text for document in numbered()))


@pytest.mark.parametrize("alpha", [0.05, 0.5, 10.0])
def test_dirichlet_shards_hold_every_byte_exactly_once(alpha):
    letters = [
        Document(name=str(group), group=str(group), text=bytes([group]) * 1000)
        for group in range(20)
    ]
    settings = DataSettings(shard="dirichlet", dirichlet_alpha=alpha, sequence_length=8)
    dealt = sum((Counter(shard) for shard in shards(settings, 4, letters)), Counter())
    assert dealt == {group: 1000 for group in range(20)}


def test_dirichlet_shards_are_the_more_unlike_the_smaller_alpha_is():
    letters = [
        Document(name=str(group), group=str(group), text=bytes([group]) * 1000)
        for group in range(20)
    ]

    def largest_share(alpha):
        settings = DataSettings(shard="dirichlet", dirichlet_alpha=alpha, sequence_length=8)
        counts = [Counter(shard) for shard in shards(settings, 4, letters)]
        return np.mean([max(count[group] for count in counts) for group in range(20)]) / 1000

    assert largest_share(100.0) < 0.35 < 0.7 < largest_share(0.1)


def test_dirichlet_shards_depend_on_the_seed_alone():
    settings = DataSettings(shard="dirichlet", sequence_length=8)
    assert shards(settings, 3, seed=5) == shards(settings, 3, seed=5)
    assert shards(settings, 3, seed=5) != shards(settings, 3, seed=6)


def test_iid_shards_interleave_blocks():
    settings = DataSettings(shard="iid", block_bytes=4, sequence_length=1)
    documents = [Document(name="a", group="a", text=b"aaaabbbbccccddddee")]
    assert shards(settings, 2, documents) == [b"aaaaccccee", b"bbbbdddd"]


def test_a_group_stays_whole_and_shards_are_even():
    settings = DataSettings(shard="group", sequence_length=8)
    documents = numbered(documents=12, groups=6)
    homes = [
        [shard for shard in shards(settings, 3, documents) if document.text in shard]
        for document in documents
    ]
    assert all(len(home) == 1 for home in homes)
    assert {len(shard) for shard in shards(settings, 3, documents)} == {1600}


def test_fewer_groups_than_nodes_are_refused():
    with pytest.raises(ConfigError, match="6 groups for 7 nodes"):
        shards(DataSettings(shard="group", sequence_length=8), 7)


def test_shared_text_is_whole_on_every_node():
    whole = b"".join(document.text for document in numbered())
    assert shards(DataSettings(shard="shared", sequence_length=8), 2) == [whole, whole]


def test_a_shard_shorter_than_a_sequence_is_refused():
    with pytest.raises(ConfigError, match=r"data\.shard"):
        shards(DataSettings(shard="contiguous", sequence_length=2000), 4)


def test_held_out_text_and_training_text_together_are_the_whole():
    documents = numbered()
    training, held_out = hold_out(documents, DataSettings(held_out_fraction=0.3))
    total = sum(len(document.text) for document in documents)
    assert sum(len(document.text) for document in held_out) == round(total * 0.3)
    both = sum((words_of(document.text) for document in (*training, *held_out)), Counter())
    assert both == words_of(b"".join(document.text for document in documents))


def test_at_most_one_document_is_cut_by_the_fraction():
    training, held_out = hold_out(numbered(), DataSettings(held_out_fraction=0.3))
    assert len({one.name for one in training} & {one.name for one in held_out}) <= 1
    assert len(held_out) > 2


def test_the_end_of_a_single_document_is_held_out():
    document = Document(name="a", group="a", text=bytes(range(100)))
    training, held_out = hold_out([document], DataSettings(held_out_fraction=0.1))
    assert (training[0].text, held_out[0].text) == (bytes(range(90)), bytes(range(90, 100)))


def test_named_documents_are_held_out_whole():
    settings = DataSettings(held_out_files=["1?.txt"])
    training, held_out = hold_out(numbered(), settings)
    assert [document.name for document in held_out] == ["10.txt", "11.txt"]
    assert len(training) == 10


def test_a_held_out_pattern_that_matches_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"data\.held_out_files"):
        hold_out(numbered(), DataSettings(held_out_files=["nothing*"]))
