import itertools
import json
import sys
from importlib.util import find_spec

import pytest
import torch

from ray_diloco.errors import ConfigError
from ray_diloco.workload.data import (
    build_data,
    evaluation_batches,
    training_stream,
    vocabulary_of,
)
from ray_diloco.workload.hf_data import Packer
from ray_diloco.workload.settings import DataSettings

needs_datasets = pytest.mark.skipif(
    find_spec("datasets") is None, reason="needs the extra hf; runs in .ci/run"
)


@pytest.fixture
def settings(tmp_path, monkeypatch) -> DataSettings:
    """40 documents, each of its own letter, in a local file."""
    rows = [json.dumps({"text": chr(48 + number) * 9, "more": 1}) for number in range(40)]
    file = tmp_path / "documents.jsonl"
    file.write_text("\n".join(rows))
    return DataSettings(
        name="hf",
        dataset="json",
        files=[str(file)],
        sequence_length=5,
        batch_size=2,
        eval_batches=3,
        eval_batch_size=2,
        held_out_documents=8,
    )


def letters(batches) -> set[int]:
    return {int(token) - 48 for batch in batches for token in batch.unique() if token != 10}


def stream(settings, node_index, nodes):
    return training_stream(
        build_data(settings), settings, node_index=node_index, nodes=nodes, seed=0
    )


def test_a_packer_predicts_every_token_once():
    packer = Packer(2, 3)
    batches = [batch for start in (0, 7, 14) for batch in packer.add(list(range(start, start + 7)))]
    assert [batch.shape for batch in batches] == [(2, 4)] * 3
    targets = torch.cat([batch[:, 1:].reshape(-1) for batch in batches])
    assert targets.tolist() == list(range(1, 19))
    assert packer.rest == [18, 19, 20]


@needs_datasets
def test_each_document_is_held_out_or_belongs_to_one_node(settings):
    held = letters(evaluation_batches(build_data(settings), settings))
    shares = [letters(stream(settings, node, 2)) for node in range(2)]
    assert held <= set(range(8))
    assert shares[0] & shares[1] == set()
    assert shares[0] | shares[1] == set(range(8, 40))


@needs_datasets
def test_an_evaluation_split_leaves_all_of_the_other_to_the_nodes(settings):
    chosen = DataSettings(
        **{name: getattr(settings, name) for name in ("dataset", "files", "sequence_length")},
        name="hf",
        eval_split="train",
        eval_batches=1,
        eval_batch_size=1,
        batch_size=1,
    )
    assert len(evaluation_batches(build_data(chosen), chosen)) == 1
    assert letters(stream(chosen, 0, 1)) == set(range(40))


@needs_datasets
def test_a_stream_goes_on_where_its_state_was_saved_and_begins_anew_after_its_end(settings):
    whole = list(stream(settings, 0, 2))
    for drawn in (1, 5):
        first = stream(settings, 0, 2)
        list(itertools.islice(first, drawn))
        again = stream(settings, 0, 2)
        again.load_state_dict(json.loads(json.dumps(first.state_dict())))
        rest = list(again)
        assert torch.equal(torch.cat(rest), torch.cat(whole[drawn:]))
    assert torch.equal(next(iter(again)), whole[0])


@needs_datasets
def test_a_tokenizers_file_gives_the_ids_and_the_vocabulary(settings, tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra hf; runs in .ci/run")
    words = {"?": 0} | {chr(48 + number) * 9: number + 1 for number in range(40)}
    model = tokenizers.models.WordLevel(words, unk_token="?")
    tokenizers.Tokenizer(model).save(str(tmp_path / "words.json"))
    chosen = DataSettings(
        **{name: getattr(settings, name) for name in ("name", "dataset", "files")},
        tokenizer=str(tmp_path / "words.json"),
        sequence_length=3,
        batch_size=2,
        held_out_documents=8,
    )
    corpus = build_data(chosen)
    assert vocabulary_of(corpus) == 41
    batch = next(iter(training_stream(corpus, chosen, node_index=0, nodes=1, seed=0)))
    assert batch.tolist() == [[9, 10, 11, 12], [12, 13, 14, 15]]


@needs_datasets
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"text_column": "body"}, "data.text_column"),
        ({"files": ["/no/such/file.jsonl"]}, "data.dataset"),
        ({"split": "validation"}, "data.dataset"),
        ({"held_out_documents": 1, "sequence_length": 50}, "data.held_out_documents"),
    ],
)
def test_what_the_dataset_does_not_have_is_named(settings, changes, named):
    given = {name: getattr(settings, name) for name in ("name", "dataset", "files")}
    chosen = DataSettings(**(given | changes))
    with pytest.raises(ConfigError) as caught:
        evaluation_batches(build_data(chosen), chosen)
    assert caught.value.setting == named


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"datasets: pip install 'ray-diloco\[hf\]'"):
        build_data(DataSettings(name="hf", dataset="json"))
