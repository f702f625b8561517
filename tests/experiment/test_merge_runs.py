"""Whole runs of machines that come and go, in which somebody waits for somebody."""

import pytest

from ray_diloco.experiment.run import run

FLAKY = (
    *("cluster=flaky", "time=virtual", "data.eval_batches=1", "data.sequence_length=16"),
    *("data.batch_size=2", "diloco=quick", "diloco.inner_steps=10", "diloco.poll_interval=0.2"),
    *("diloco.node_timeout=12", "run.max_steps=160", "run.progress=none", "model=mlp"),
    *("data=synthetic", "data.synthetic_bytes=20000", "hub=memory", "engine=inproc"),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "choice",
    [
        ("merge=synchronous",),
        ("merge=grace", "diloco.wait_for_merge=true", "inner_schedule=dylu"),
        ("merge=quorum", "diloco.wait_for_merge=true", "diloco.max_wait=3"),
        ("merge=quorum", "diloco.min_deltas=3", "diloco.max_wait=3"),
    ],
)
def test_nobody_waits_for_ever_for_a_machine_that_went(configure, tmp_path, choice):
    numbers = run(configure(*FLAKY, *choice), tmp_path).numbers
    assert numbers["crashes"]
    assert (numbers["status"], numbers["range_sum"]) == ("done", "ok")
    assert numbers["run_seconds"] < 120
    assert numbers["eval_loss"] < numbers["initial_eval_loss"]
