import dataclasses
import re

import pytest
from omegaconf import OmegaConf

from ray_diloco.experiment.conf_folder import conf_dir
from ray_diloco.experiment.schema import Config, EngineName, Role
from ray_diloco.protocol.settings import DilocoSettings

FILES = sorted(
    f"{path.parent.relative_to(conf_dir()).as_posix()}={path.stem}"
    for path in conf_dir().glob("*/*.yaml")
)
ALGORITHMS = (
    *("outer", "merge", "weighting", "staleness", "aggregation"),
    *("inner_schedule", "inner", "codec", "fragments"),
)
FULL = {
    "diloco": "dumb",
    "cluster": "two_speed",
    "data": "stdlib",
    "model": "gpt",
    "inner": "adamw",
    "checkpoint": "default",
    "hub": "embedded",
    "security": "open",
    "engine": "ray",
    "time": "wall",
    "ray": "local",
    "tracking": "none",
    "sweep": "default",
    "search": "default",
}


def text_of(group: str) -> str:
    return (conf_dir() / group / f"{FULL[group]}.yaml").read_text()


@pytest.mark.parametrize("choice", FILES)
def test_every_file_composes_into_the_schema(configure, choice):
    assert isinstance(configure(choice), Config)


def test_the_folder_is_found_by_an_absolute_path():
    assert conf_dir().is_absolute()
    assert (conf_dir() / "config.yaml").is_file()


@pytest.mark.parametrize("field", dataclasses.fields(Config), ids=lambda field: field.name)
def test_every_setting_of_the_schema_stands_in_conf_with_a_comment(field):
    text = (conf_dir() / "config.yaml").read_text() if field.name == "run" else text_of(field.name)
    given = OmegaConf.create(text)
    given = given.run if field.name == "run" else given
    for setting in dataclasses.fields(field.default_factory):
        assert setting.name in given, f"{field.name}.{setting.name} is missing in conf"
        line = next(x for x in text.splitlines() if x.strip().startswith(f"{setting.name}:"))
        assert "#" in line, f"{field.name}.{setting.name} has no comment"


def test_every_setting_of_a_profile_stands_in_conf_with_a_comment():
    first = OmegaConf.create(text_of("cluster")).profiles[0]
    from ray_diloco.timing.profile import NodeProfile

    assert set(first) == {field.name for field in dataclasses.fields(NodeProfile)}


@pytest.mark.parametrize("choice", FILES)
def test_every_file_says_what_it_means(choice):
    group, name = choice.split("=")
    first = (conf_dir() / group / f"{name}.yaml").read_text().splitlines()
    assert any(line.startswith("# ") and "@package" not in line for line in first)


@pytest.mark.parametrize("group", ALGORITHMS)
def test_every_choice_of_an_algorithm_names_its_source(group):
    for path in (conf_dir() / group).glob("*.yaml"):
        told = " ".join(x for x in path.read_text().splitlines() if x.startswith("#"))
        assert re.search(r"arXiv (# )?\d{4}\.\d{5}|the plain protocol|The user's own", told), path


def test_the_plain_protocol_keeps_its_defaults(configure):
    plain = configure("diloco=dumb").diloco
    assert (plain.inner_steps, plain.outer_lr, plain.outer_momentum) == (500, 0.7, 0.9)
    assert plain.poll_interval == 60.0
    assert plain == DilocoSettings()


def test_a_plain_run_has_a_master_and_four_unequal_nodes_on_ray(configure):
    config = configure()
    assert config.run.role is Role.master
    assert config.engine.name is EngineName.ray
    assert config.cluster.nodes == 4
    assert len({profile.seconds_per_step for profile in config.cluster.profiles}) > 1
