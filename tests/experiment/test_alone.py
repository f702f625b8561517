import json
from dataclasses import replace

import pytest

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.alone import check_alone, fastest_alone
from ray_diloco.experiment.run import run
from ray_diloco.experiment.schema import TimeKind

PROFILES = (
    "cluster.profiles=[{seconds_per_step: 0.3}, "
    "{seconds_per_step: 0.1, join_at: 2.0, up_mbps: 1.0, crash_at: 3.0, recover_after: 1.0}]"
)
VIRTUAL = ("hub=memory", "time=virtual", "run.report=false")


def test_the_fastest_is_alone_and_there_all_the_time(configure):
    config = fastest_alone(configure(*VIRTUAL, PROFILES, "cluster.hub_up_mbps=3.0"), 12.5)
    (profile,) = config.cluster.profiles
    assert (profile.seconds_per_step, profile.join_at, profile.up_mbps) == (0.1, 0.0, None)
    assert profile.crash_at is None
    assert (config.run.role, config.run.max_seconds, config.run.max_steps) == ("single", 12.5, None)


def test_its_loss_is_in_the_result_of_a_whole_run(small, tmp_path):
    config = small(*VIRTUAL, PROFILES.replace(", crash_at: 3.0, recover_after: 1.0", ""))
    config = replace(config, run=replace(config.run, alone=True))
    numbers = run(config, tmp_path).numbers
    told = json.loads((tmp_path / "alone" / "result.json").read_text())
    assert numbers["alone_eval_loss"] == told["eval_loss"]
    assert told["eval_loss"] < told["initial_eval_loss"] == numbers["initial_eval_loss"]
    (steps,) = [node["local_steps"] for node in told["nodes"].values()]
    assert steps == pytest.approx(numbers["run_seconds"] / 0.1, abs=1)


def test_it_is_not_asked_where_no_speed_is_known(small):
    config = small("hub=memory", "time=virtual")
    config = replace(config, run=replace(config.run, alone=True))
    check_alone(config)
    wall = replace(config.time, kind=TimeKind.wall, emulate_profile=False)
    with pytest.raises(ConfigError, match=r"run\.alone=True: expected time=virtual"):
        check_alone(replace(config, time=wall))
    with pytest.raises(ConfigError, match=r"run\.alone=True: expected false with run\.role=worker"):
        check_alone(replace(config, run=replace(config.run, role="worker")))
