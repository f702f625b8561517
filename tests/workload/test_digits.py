import itertools
import sys
from importlib.util import find_spec

import pytest
import torch

from ray_diloco.errors import ConfigError
from ray_diloco.workload.data import build_data, evaluation_batches, shard_tokens, training_stream
from ray_diloco.workload.digits import (
    ImageStream,
    image_corpus,
    image_evaluation,
    read_digits,
    shard_images,
)
from ray_diloco.workload.evaluation import evaluate
from ray_diloco.workload.loss import batch_loss, count_tokens
from ray_diloco.workload.models import build_model
from ray_diloco.workload.optimizers import build_optimizer
from ray_diloco.workload.settings import DataSettings, InnerSettings, ModelSettings

needs_sklearn = pytest.mark.skipif(
    find_spec("sklearn") is None, reason="needs the extra digits; runs in .ci/run"
)
LABELS = torch.arange(300) % 10
IMAGES = torch.arange(300.0)[:, None, None, None].expand(300, 1, 8, 8).contiguous()


@pytest.mark.parametrize("shard", ["iid", "contiguous", "group", "dirichlet"])
def test_every_image_belongs_to_exactly_one_node(shard):
    settings = DataSettings(name="digits", shard=shard, dirichlet_alpha=1.0)
    shards = [shard_images(LABELS, settings, node_index=node, nodes=3, seed=0) for node in range(3)]
    assert sorted(torch.cat(shards).tolist()) == list(range(300))
    classes = [len(LABELS[each].unique()) for each in shards]
    assert classes == [4, 4, 4] if shard == "group" else max(classes) > 4


def test_more_nodes_than_images_are_refused():
    with pytest.raises(ConfigError, match=r"data\.shard='iid': one of 301 shards would be empty"):
        shard_images(LABELS, DataSettings(), node_index=0, nodes=301, seed=0)


def test_no_image_is_both_trained_on_and_held_out():
    corpus = image_corpus(IMAGES, LABELS, DataSettings(held_out_fraction=0.2))
    assert (len(corpus.training[1]), len(corpus.held_out[1])) == (240, 60)
    seen = [set(images[:, 0, 0, 0].tolist()) for images, _ in (corpus.training, corpus.held_out)]
    assert seen[0] | seen[1] == set(range(300))
    batches = image_evaluation(corpus, DataSettings(eval_batch_size=25, eval_batches=8))
    assert [len(labels) for _, labels in batches] == [25, 25, 10]


def test_a_stream_goes_on_where_its_state_was_saved():
    def stream():
        generator = torch.Generator().manual_seed(0)
        return ImageStream((IMAGES, LABELS), batch_size=4, generator=generator)

    first = stream()
    batches = iter(first)
    next(batches)
    state = first.state_dict()
    again = stream()
    again.load_state_dict(state)
    expected, found = next(batches), next(iter(again))
    assert torch.equal(expected[0], found[0])
    assert torch.equal(expected[1], found[1])


@pytest.fixture
def one_thread():
    """As in a node: small convolutions on several threads wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@needs_sklearn
@pytest.mark.parametrize("model", ["cnn", "perceptron"])
def test_digits_are_learnt_in_seconds(model, one_thread):
    settings = DataSettings(name="digits", held_out_fraction=0.2, batch_size=32, eval_batch_size=64)
    corpus = build_data(settings)
    stream = training_stream(corpus, settings, node_index=0, nodes=2, seed=0)
    assert shard_tokens(stream) == len(corpus.training[1]) // 2
    held_out = evaluation_batches(corpus, settings)
    network = build_model(ModelSettings(name=model), seed=0)
    optimizer = build_optimizer(network, InnerSettings(learning_rate=1e-2))
    before = evaluate(network, held_out)
    for batch in itertools.islice(stream, 60):
        assert count_tokens(batch) == 32
        batch_loss(network, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert before > 2
    assert evaluate(network, held_out) < 0.5


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    read_digits.cache_clear()
    with pytest.raises(ConfigError, match=r"sklearn\S*: pip install 'ray-diloco\[digits\]'"):
        build_data(DataSettings(name="digits"))
