import dataclasses

import pytest
from omegaconf import OmegaConf

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.conf_folder import conf_dir
from ray_diloco.experiment.sweep.settings import LauncherSettings, SweepSettings


def test_every_setting_of_the_launcher_stands_in_conf_with_its_default_and_a_comment():
    text = (conf_dir() / "hydra" / "launcher" / "ray_pool.yaml").read_text()
    given = OmegaConf.to_container(OmegaConf.create(text))
    assert given.pop("_target_") == "hydra_plugins.ray_diloco_sweep.RayPoolLauncher"
    assert given == dataclasses.asdict(LauncherSettings())
    for name in given:
        line = next(each for each in text.splitlines() if each.startswith(f"{name}:"))
        assert "#" in line, name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_concurrent", 0),
        ("trial_timeout", 0.0),
        ("trial_timeout", float("inf")),
        ("retries", -1),
        ("cpus_per_trial", -1.0),
        ("memory_per_trial", 0.0),
    ],
)
def test_a_setting_of_the_launcher_that_cannot_be_is_named(name, value):
    with pytest.raises(ConfigError, match=rf"hydra\.launcher\.{name}={value}: expected"):
        LauncherSettings(**{name: value}).check()


@pytest.mark.parametrize(("name", "value"), [("seeds", 0), ("shown", 0), ("engine", "threads")])
def test_a_setting_of_the_sweep_that_cannot_be_is_named(name, value):
    with pytest.raises(ConfigError, match=rf"sweep\.{name}="):
        SweepSettings(**{name: value}).check()
