from collections.abc import Callable

import pytest
from hydra import compose, initialize_config_dir

from ray_diloco.experiment.conf_folder import conf_dir
from ray_diloco.experiment.reading import read_config
from ray_diloco.experiment.schema import Config


@pytest.fixture(scope="session")
def configure() -> Callable[..., Config]:
    """The configuration that these overrides lead to."""

    def read(*overrides: str) -> Config:
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            return read_config(compose("config", list(overrides)))

    return read


@pytest.fixture(scope="session")
def small(configure) -> Callable[..., Config]:
    """A configuration of a run that takes no time: synthetic data, a small mlp, in this process."""

    def read(*overrides: str) -> Config:
        return configure(
            "debug=default",
            "data=synthetic",
            "data.synthetic_bytes=20000",
            "hub=memory",
            *overrides,
        )

    return read
