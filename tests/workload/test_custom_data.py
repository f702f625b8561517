import itertools

import pytest

from ray_diloco.errors import ConfigError
from ray_diloco.workload.custom_data import custom_evaluation, custom_training
from ray_diloco.workload.settings import DataSettings


class ByEpoch(list):
    def set_epoch(self, epoch):
        self.epoch = epoch


def numbers(count):
    return ByEpoch(range(count))


def told_its_node(node_index, nodes, split, batch_size):
    return [(split, node_index, nodes, batch_size)] * 3


def no_batches():
    return 3


def nothing():
    return []


def settings(function, eval_batches=2, shard="iid", **arguments):
    return DataSettings(
        name="custom",
        custom={"_target_": f"{__name__}.{function.__name__}", **arguments},
        allow_targets=[__name__],
        eval_batches=eval_batches,
        shard=shard,
    )


def train(made, node_index, nodes=3):
    return custom_training(made, node_index=node_index, nodes=nodes, seed=0, batch_size=8)


def test_batches_of_a_source_that_knows_no_nodes_are_dealt_and_the_first_held_out():
    made = settings(numbers, count=11)
    assert custom_evaluation(made) == [0, 1]
    assert [list(train(made, node)) for node in range(3)] == [[2, 5, 8], [3, 6, 9], [4, 7, 10]]


def test_dealt_batches_can_be_iterated_again():
    batches = train(settings(numbers, count=11), 0)
    assert list(batches) == list(batches)


def test_the_epoch_is_handed_on():
    batches = train(settings(numbers, count=11), 0)
    batches.set_epoch(4)
    assert batches._batches.epoch == 4


def test_a_source_that_takes_its_node_is_told_and_not_dealt():
    made = settings(told_its_node)
    assert list(train(made, 1)) == [("train", 1, 3, 8)] * 3
    assert custom_evaluation(made) == [("eval", 0, 1, 16)] * 2


def test_shared_batches_are_the_same_on_every_node():
    made = settings(numbers, shard="shared", count=5)
    assert [list(train(made, node)) for node in range(2)] == [[2, 3, 4]] * 2


def test_a_target_that_gives_no_iterable_is_refused():
    with pytest.raises(ConfigError, match="iterable of batches"):
        train(settings(no_batches), 0)


def test_data_without_a_batch_to_evaluate_with_is_refused():
    with pytest.raises(ConfigError, match="at least one batch"):
        custom_evaluation(settings(nothing))


def test_endless_sources_are_not_exhausted():
    made = DataSettings(
        name="custom",
        custom={"_target_": "itertools.count"},
        allow_targets=["itertools"],
        eval_batches=2,
    )
    assert list(itertools.islice(train(made, 1), 3)) == [3, 6, 9]
