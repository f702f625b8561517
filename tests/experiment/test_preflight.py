import re

import pytest

from ray_diloco.experiment.checks import warnings_of
from ray_diloco.experiment.preflight import expectations, forecast, over_budget, preflight
from ray_diloco.workload.outline import estimate_bytes

BUSY = (
    "hub=huggingface",
    "cluster.nodes=16",
    "cluster.profiles=[{seconds_per_step: 1.0}]",
    "diloco.inner_steps=120",
    "diloco.poll_interval=60",
    "time.kind=virtual",
    "run.max_steps=null",
    "run.max_seconds=36000",
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


def test_fragments_go_more_often_and_are_all_that_a_node_fetches(small):
    few = ("cluster.nodes=2", "diloco.poll_interval=10")
    whole, cut = small(*BUSY, *few), small(*BUSY, *few, "diloco.fragments=2")
    size, one, two = estimate_bytes(whole.model), forecast(whole), forecast(cut)
    assert (one.deltas, two.deltas) == (60, 120)
    assert (one.publications, two.publications) == (60, 120)
    assert two.down == 120 * size / 2 + 120 * size / 2 * 2 == one.down
    assert two.up == 120 * size / 2 + 120 * (size + size + size / 2)


def test_a_model_of_half_precision_sends_deltas_and_state_in_float32(small):
    config = small(*BUSY, "cluster.nodes=1", "model.dtype=bfloat16", "diloco.outer_state_every=2")
    size = estimate_bytes(config.model)
    found = forecast(config)
    assert size is not None
    assert found.up == 30 * 2 * size + 30 * (size + 4 * size / 2)


def test_the_outer_state_is_as_large_as_what_the_outer_optimizer_remembers(small):
    def state(*overrides) -> float:
        config = small(*BUSY, "cluster.nodes=1", *overrides)
        return (forecast(config).up or 0) - 60 * (estimate_bytes(config.model) or 0)

    momentum = state()
    assert momentum > 0
    assert state("diloco.outer=sgd") == 0
    assert state("diloco.outer=adam") == state("diloco.outer=buffered") == 2 * momentum


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
    long = small(*BUSY, "run.max_steps=10000")
    assert warnings_of(long) == over_budget(long) != []
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


def test_dynamic_local_updates_make_slow_nodes_send_as_often_as_the_fastest(small):
    speeds = "cluster.profiles=[{seconds_per_step: 1.0}, {seconds_per_step: 3.0}]"
    config = small(*BUSY, "cluster.nodes=2", speeds)
    assert forecast(config).deltas == 30 + 10
    assert forecast(small(*BUSY, "cluster.nodes=2", speeds, "inner_schedule=dylu")).deltas == 60


SHORT = (*BUSY, "run.max_steps=360")


def test_nothing_longer_than_the_run_is_proposed(small):
    (line,) = over_budget(small(*SHORT, "cluster.nodes=16"))
    assert "diloco.inner_steps=" not in line
    (line,) = over_budget(small(*SHORT, "cluster.nodes=1", "hub.commits_per_hour=10"))
    assert "a hub of your own, with a larger hub.commits_per_hour, would do" in line


def test_how_little_of_a_short_run_is_exchanged_is_said(small):
    (line,) = over_budget(small(*SHORT, "cluster.nodes=16"))
    assert "; the fastest node sends about 2 deltas in this run, at 3 boundaries." in line
    (line,) = over_budget(small(*SHORT, "cluster.nodes=16", "run.max_steps=12000"))
    assert "about 18 deltas in this run, at 100 boundaries" in line
    assert "in this run" not in over_budget(small(*BUSY))[0]


def test_a_run_whose_deltas_may_all_go_at_once_is_not_warned(small):
    assert over_budget(small(*BUSY, "run.max_steps=240")) == []
    assert over_budget(small(*BUSY, "run.max_steps=241")) != []


def test_where_nobody_keeps_the_profiles_their_speeds_make_no_estimate(small):
    real = (*BUSY, "time.kind=wall", "time.emulate_profile=false")
    text = "\n".join(expectations(small(*real)))
    assert "per hour:" not in text
    assert "hub.commits_per_hour=100, so that each node sends one delta in 720 s at most" in text
    assert "for a delta" in text
    assert over_budget(small(*real)) == []
    emulated = expectations(small(*BUSY, "time.kind=wall", "time.emulate_profile=true"))
    assert "about 540 per hour" in emulated[0]
    asked = preflight(small(*real))
    assert "about 540 per hour" in asked[0]
    assert any("time.emulate_profile=false does not keep" in line for line in asked)
    assert "would do" in asked[-1]
