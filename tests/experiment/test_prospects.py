from ray_diloco.experiment.build import complete
from ray_diloco.experiment.prospects import prospects

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


def test_a_hub_that_is_too_narrow_for_all_is_named_with_what_they_want(small):
    lines = told(small, "cluster.hub_up_mbps=0.001")
    assert any("cluster.hub_up_mbps=0.001" in line for line in lines)


def test_what_real_time_cannot_do_is_named(small):
    config = small("cluster.nodes=2", "time=wall", "cluster.profiles=[{crash_at: 3.0}]")
    assert any("time=wall knows no crash_at" in line for line in prospects(complete(config)))
