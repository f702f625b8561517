"""Runs whose rounds last longer than the patience with a silent node."""

import json

import pytest
from scene import configure

from ray_diloco.experiment.run import run

SLOW = (
    "experiment=quickstart",
    "engine=inproc",
    "hub=memory",
    "time=virtual",
    "data=synthetic",
    "data.synthetic_bytes=40000",
    "data.sequence_length=16",
    "data.batch_size=1",
    "data.eval_batches=1",
    "model.width=4",
    "model.hidden=8",
    "model.window=2",
    "run.progress=none",
    "cluster.nodes=2",
    "run.max_steps=40",
    "diloco.inner_steps=20",
)


@pytest.mark.parametrize(
    "profiles", ["[{seconds_per_step: 40}]", "[{seconds_per_step: 1},{seconds_per_step: 40}]"]
)
def test_a_node_that_trains_for_long_between_two_deltas_is_not_taken_for_gone(profiles, tmp_path):
    numbers = run(configure(*SLOW, f"cluster.profiles={profiles}"), tmp_path).numbers
    assert (numbers["status"], numbers["range_sum"]) == ("done", "ok")
    assert numbers["deltas_merged"] == 4
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert max(event["at"] for event in events) > 1_500_000_000
