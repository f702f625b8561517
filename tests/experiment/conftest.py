from collections.abc import Callable
from functools import cache

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from ray_diloco.experiment.conf_folder import conf_dir
from ray_diloco.experiment.reading import read_config
from ray_diloco.experiment.schema import Config


@cache
def composed(choices: tuple[str, ...]) -> DictConfig:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return compose("config", list(choices))


@pytest.fixture(scope="session")
def configure() -> Callable[..., Config]:
    """The configuration that these overrides lead to. Hydra composes the chosen files; single
    settings are merged on top, which is much faster.
    """

    def read(*overrides: str) -> Config:
        settings = [each for each in overrides if "." in each.split("=")[0]]
        chosen = composed(tuple(each for each in overrides if each not in settings))
        given = OmegaConf.create(OmegaConf.to_container(chosen))
        changes = OmegaConf.from_dotlist([each.lstrip("+") for each in settings])
        return read_config(OmegaConf.merge(given, changes))

    return read


@pytest.fixture(scope="session")
def small(configure) -> Callable[..., Config]:
    """A configuration of a run that takes no time: synthetic data, a small mlp, in this process."""

    def read(*overrides: str) -> Config:
        chosen = {each.split("=")[0] for each in overrides}
        defaults = ("debug=default", "data=synthetic", "data.synthetic_bytes=20000", "hub=memory")
        kept = [each for each in defaults if each.split("=")[0] not in chosen]
        return configure(*kept, *overrides)

    return read
