from collections import Counter as Tally

import pytest

from ray_diloco.protocol.metrics import MASTER_METRICS, NODE_METRICS, Meter
from ray_diloco.protocol.run import MasterStatus, NodeStatus


class Shown:
    """Stands where the metrics go: values by name; a counter takes what is above 0 alone."""

    def __init__(self):
        self.values = {}
        self.labels = []

    def counter(self, name, *, description, tag_keys):
        return _Instrument(self, name, description, tag_keys)

    gauge = counter


class _Instrument:
    def __init__(self, shown, name, description, tag_keys):
        assert description
        self._shown, self._name, self._keys = shown, name, tag_keys

    def inc(self, value, tags):
        assert value > 0
        self.set(self._shown.values.get(self._name, 0) + value, tags)

    def set(self, value, tags):
        assert tuple(tags) == self._keys
        self._shown.labels.append(tags)
        self._shown.values[self._name] = value


def meter(metrics, shown):
    labels = {"run": "r", "participant": "n0"}
    return Meter(metrics, labels=labels, counter=shown.counter, gauge=shown.gauge)


def test_a_counter_holds_what_this_process_did_however_often_it_is_shown():
    shown = Shown()
    node = meter(NODE_METRICS, shown)
    for steps in (100, 105, 105, 110):
        node.show(
            NodeStatus(
                node_id="n0",
                local_step=steps,
                steps_before=100,
                tokens=8 * steps,
                tokens_before=800,
            )
        )
    assert shown.values["diloco_local_steps"] == 10
    assert shown.values["diloco_tokens"] == 80
    assert {"run": "r", "participant": "n0"} in shown.labels


def test_a_gauge_shows_how_things_stand_and_nothing_before_that_is_known():
    shown = Shown()
    node = meter(NODE_METRICS, shown)
    node.show(NodeStatus(node_id="n0"))
    assert "diloco_train_loss" not in shown.values
    for loss in (3.0, 2.0):
        node.show(NodeStatus(node_id="n0", loss=loss))
        assert shown.values["diloco_train_loss"] == loss


def test_a_master_shows_its_traffic_and_what_it_merged():
    shown = Shown()
    status = MasterStatus(
        outer_step=3, deltas_merged=5, deltas_rejected=2, staleness=1.5, bytes_up=7, commits=4
    )
    meter(MASTER_METRICS, shown).show(status)
    assert shown.values == {
        "diloco_outer_step": 3,
        "diloco_tokens_merged": 0,
        "diloco_staleness": 1.5,
        "diloco_deltas_merged": 5,
        "diloco_deltas_rejected": 2,
        "diloco_bytes_up": 7,
        "diloco_commits": 4,
    }


@pytest.mark.parametrize("metrics", [NODE_METRICS, MASTER_METRICS], ids=["node", "master"])
def test_a_participant_has_no_metric_twice(metrics):
    assert max(Tally(each.name for each in metrics).values()) == 1


def test_a_name_that_both_have_means_the_same():
    node, master = (
        {each.name: (each.kind, each.means) for each in metrics}
        for metrics in (NODE_METRICS, MASTER_METRICS)
    )
    assert {name: node[name] for name in node.keys() & master.keys()} == {
        name: master[name] for name in node.keys() & master.keys()
    }
