import re

import pytest

from ray_diloco.experiment.checks import warnings_of
from ray_diloco.experiment.preflight import expectations, forecast, over_budget, preflight
from ray_diloco.workload.models import estimate_bytes

BUSY = (
    "hub=huggingface",
    "cluster.nodes=16",
    "cluster.profiles=[{seconds_per_step: 1.0}]",
    "diloco.inner_steps=120",
    "diloco.poll_interval=60",
)


def test_sixteen_nodes_that_send_every_two_minutes_want_five_hundred_commits(small):
    found = forecast(small(*BUSY))
    assert found.deltas == 480
    assert found.publications == 60
    assert not found.fits


def test_bytes_are_deltas_publications_and_outer_state(small):
    config = small(*BUSY, "cluster.nodes=2", "diloco.poll_interval=600")
    size = estimate_bytes(config.model)
    found = forecast(config)
    assert size is not None
    assert (found.deltas, found.publications) == (60, 6)
    assert found.up == 60 * size + 6 * (size + size)
    assert found.down == 60 * size + 6 * size * 2


def test_a_model_of_half_precision_sends_deltas_and_state_in_float32(small):
    config = small(*BUSY, "cluster.nodes=1", "model.dtype=bfloat16", "diloco.outer_state_every=2")
    size = estimate_bytes(config.model)
    found = forecast(config)
    assert size is not None
    assert found.up == 30 * 2 * size + 30 * (size + 4 * size / 2)


def test_a_slow_link_sends_fewer_deltas(small):
    config = small(*BUSY, "cluster.nodes=1")
    size = estimate_bytes(config.model) or 0
    mbps = size * 8 / 1e6 / 200  # one delta takes 200 s, a boundary comes every 120 s
    slow = small(
        *BUSY, "cluster.nodes=1", f"cluster.profiles=[{{seconds_per_step: 1.0, up_mbps: {mbps}}}]"
    )
    assert (forecast(config).deltas, forecast(slow).deltas) == (30, 15)


def test_what_is_proposed_would_do_and_a_little_less_would_not(small):
    (line,) = over_budget(small(*BUSY))
    steps = int(re.findall(r"diloco\.inner_steps=(\d+)", line)[0])
    nodes = int(re.findall(r"cluster\.nodes=(\d+)", line)[0])
    assert "540 commits per hour" in line
    assert forecast(small(*BUSY, f"diloco.inner_steps={steps}")).fits
    assert not forecast(small(*BUSY, f"diloco.inner_steps={steps - 1}")).fits
    assert forecast(small(*BUSY, f"cluster.nodes={nodes}")).fits
    assert not forecast(small(*BUSY, f"cluster.nodes={nodes + 1}")).fits


def test_a_run_over_its_budget_is_warned_and_one_that_nobody_counts_is_not(small):
    assert warnings_of(small(*BUSY, "run.max_steps=1000")) == over_budget(small(*BUSY))
    assert over_budget(small(*BUSY, "hub=embedded")) == []
    assert over_budget(small(*BUSY, "hub=embedded", "hub.strict=true")) != []
    assert over_budget(small(*BUSY, "hub.commits_per_hour=1000")) == []


def test_the_lines_say_commits_bytes_and_storage(small):
    text = "\n".join(preflight(small(*BUSY)))
    for word in ("about 540 per hour", "commits_per_hour=100", "up", "down", "storage", "would do"):
        assert word in text
    assert expectations(small("run.role=single", "cluster=single")) == [
        "run.role=single exchanges nothing"
    ]


@pytest.mark.parametrize("squash", [0, 500])
def test_storage_grows_until_the_history_is_squashed(small, squash):
    text = "\n".join(expectations(small(*BUSY, f"hub.squash_every={squash}")))
    assert "until the history is squashed" in text
    assert (f"squash_every={squash}" in text) == bool(squash)
