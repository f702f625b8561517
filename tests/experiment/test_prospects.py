from ray_diloco.experiment.build import complete
from ray_diloco.experiment.delta_size import delta_bytes
from ray_diloco.experiment.prospects import prospects
from ray_diloco.workload.outline import estimate_bytes

PROFILES = "cluster.profiles=[{seconds_per_step: 0.1}, {seconds_per_step: 2.0, up_mbps: 0.01}]"


def told(small, *overrides):
    config = small("cluster.nodes=2", "time=virtual", *overrides)
    return prospects(complete(config))


def test_a_cluster_that_can_do_what_is_asked_is_not_spoken_of(small):
    assert told(small) == []


def test_a_node_that_never_reaches_a_boundary_is_named_with_its_times(small):
    (line,) = [
        line
        for line in told(small, PROFILES, "run.max_seconds=5", "diloco.inner_steps=4")
        if "boundary" in line and "end" in line
    ]
    assert "n1 has 5 s and needs 8 s" in line
    assert "n0" not in line


def test_an_upload_longer_than_the_steps_between_two_boundaries_is_named(small):
    lines = told(small, PROFILES, "diloco.inner_steps=4")
    (line,) = [line for line in lines if "n1 uploads" in line]
    assert "a boundary comes every 8 s" in line
    assert "n0 uploads" not in line


def test_a_shared_link_that_is_too_narrow_is_named_with_what_its_nodes_want(small):
    lines = told(small, "cluster.hub_up_mbps=0.001")
    assert any("over cluster.hub_up_mbps=0.001" in line for line in lines)
    region = "cluster.profiles=[{seconds_per_step: 0.1, shared_up: {island: 0.5}}]"
    (line,) = told(small, region, "diloco.inner_steps=4")
    size = delta_bytes(small("cluster.nodes=2"))
    assert f"{2 * size * 8 / 1e6 / 0.4:.4g} Mb/s over shared_up.island=0.5" in line


def test_a_delta_counts_as_its_codec_writes_it(small):
    whole, half, eighth = (
        delta_bytes(small(f"diloco.codec={codec}")) for codec in ("fp32", "bf16", "int4")
    )
    assert (whole, half) == (estimate_bytes(small().model), -(-whole // 2))
    assert whole / 8 < eighth < whole / 7
    slow = "cluster.profiles=[{seconds_per_step: 0.1, up_mbps: 1.0}]"
    assert told(small, slow, "diloco.inner_steps=4")
    assert not told(small, slow, "diloco.inner_steps=4", "diloco.codec=int4")


def test_what_real_time_cannot_do_is_named(small):
    config = small("cluster.nodes=2", "time=wall", "cluster.profiles=[{crash_at: 3.0}]")
    assert any("time=wall knows no crash_at" in line for line in prospects(complete(config)))


SPEEDS = "cluster.profiles=[{seconds_per_step: 1.0}, {seconds_per_step: 2.6}]"


def test_dylu_with_too_few_inner_steps_is_named_with_what_would_do(small):
    (line,) = told(small, SPEEDS, "diloco.inner_steps=4", "inner_schedule=dylu")
    assert "n1 takes 1, its share is 1.538" in line
    assert "11, four times" in line


def test_dylu_with_enough_inner_steps_is_not_spoken_of(small):
    assert told(small, SPEEDS, "diloco.inner_steps=11", "inner_schedule=dylu") == []
    assert told(small, SPEEDS, "diloco.inner_steps=4") == []


def test_a_quorum_that_waiting_nodes_cannot_reach_is_named(small):
    quorum = ("merge=quorum", "diloco.min_deltas=3")
    assert told(small, *quorum) == []
    (line,) = told(small, *quorum, "diloco.wait_for_merge=true")
    assert "diloco.max_wait=60 s" in line
