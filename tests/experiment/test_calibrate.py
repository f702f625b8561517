from omegaconf import OmegaConf

from ray_diloco.experiment.calibrate import Calibration, as_cluster, calibrate
from ray_diloco.timing.profile import NodeProfile


def test_the_file_composes_into_equal_nodes_as_measured():
    profile = NodeProfile(seconds_per_step=0.125, up_mbps=10.0, latency_ms=3.5)
    text = as_cluster(
        Calibration(profile=profile, master_seconds=0.25, steps=20, at_once=1),
        nodes=3,
        about="mlp on this machine",
    )
    assert text.startswith("# 3 equal nodes as measured: mlp on this machine; 20 steps")
    told = OmegaConf.to_container(OmegaConf.create(text))
    assert (told["nodes"], told["profiles"][0]["seconds_per_step"]) == (3, 0.125)
    assert (told["profiles"][0]["up_mbps"], told["profiles"][0]["down_mbps"]) == (10.0, None)
    assert told["master_seconds"] == 0.25


def test_steps_and_link_of_this_machine_are_measured(small):
    found = calibrate(small("hub=embedded", "cluster.nodes=1"), steps=3, at_once=2)
    assert 0 < found.profile.seconds_per_step < 10
    assert found.profile.latency_ms > 0
    assert 0 < (found.master_seconds or 0) < 10
    assert found.steps == 6
    found.profile.check("n0")
