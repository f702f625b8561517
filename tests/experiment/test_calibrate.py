from dataclasses import replace

import pytest
from omegaconf import OmegaConf

from ray_diloco.experiment.calibrate import Calibration, as_cluster, calibrate
from ray_diloco.experiment.run import run
from ray_diloco.timing.profile import NodeProfile


def test_the_file_composes_into_equal_nodes_as_measured():
    profile = NodeProfile(seconds_per_step=0.125, up_mbps=10.0, latency_ms=3.5)
    text = as_cluster(
        Calibration(profile=profile, steps=20, at_once=1), nodes=3, about="mlp on this machine"
    )
    assert text.startswith("# 3 equal nodes as measured: mlp on this machine; 20 steps")
    told = OmegaConf.to_container(OmegaConf.create(text))
    assert (told["nodes"], told["profiles"][0]["seconds_per_step"]) == (3, 0.125)
    assert (told["profiles"][0]["up_mbps"], told["profiles"][0]["down_mbps"]) == (10.0, None)


def test_steps_and_link_of_this_machine_are_measured(small):
    found = calibrate(small("hub=embedded", "cluster.nodes=1"), steps=3, at_once=2)
    assert 0 < found.profile.seconds_per_step < 10
    assert found.profile.latency_ms > 0
    assert found.steps == 6
    found.profile.check("n0")


def mean_staleness(numbers):
    merged = {int(age): count for age, count in numbers["staleness"].items()}
    return sum(age * count for age, count in merged.items()) / sum(merged.values())


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_virtual_run_of_a_calibrated_cluster_foretells_the_real_one(small, tmp_path):
    settings = (
        "hub=embedded",
        "cluster.nodes=3",
        "diloco.inner_steps=20",
        "diloco.poll_interval=2.0",
        "run.max_steps=null",
        "run.max_seconds=40",
        "inner.schedule_steps=1000",
    )
    config = small(*settings)
    measured = calibrate(config, steps=30, at_once=3).profile
    slower = [
        replace(measured, seconds_per_step=max(0.05, measured.seconds_per_step) * factor)
        for factor in (2.0, 3.0, 4.0)
    ]
    numbers = {}
    for kind in ("virtual", "wall"):
        chosen = small(*settings, f"time={kind}")
        chosen = replace(chosen, cluster=replace(chosen.cluster, profiles=slower))
        result = run(chosen, tmp_path / kind)
        assert result.status == "done"
        numbers[kind] = result.numbers
    wall, virtual = numbers["wall"], numbers["virtual"]
    assert virtual["run_seconds"] == pytest.approx(wall["run_seconds"], rel=0.15)
    assert virtual["outer_steps"] == pytest.approx(wall["outer_steps"], rel=0.15)
    assert mean_staleness(virtual) == pytest.approx(mean_staleness(wall), rel=0.15, abs=0.05)
