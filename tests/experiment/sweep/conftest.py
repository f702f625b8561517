from collections.abc import Callable, Generator, Sequence

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.utils import setup_globals
from hydra.types import RunMode
from sweeps import lasting_ray

from ray_diloco.experiment.conf_folder import conf_dir
from ray_diloco.experiment.sweep.composing import Composer
from ray_diloco.experiment.sweep.settings import SweepSettings
from ray_diloco.experiment.sweep.trials import Proposal, propose_one

TINY = ("debug=default", "data=synthetic", "data.synthetic_bytes=20000")


@pytest.fixture(scope="session")
def loader() -> ConfigLoaderImpl:
    setup_globals()
    return ConfigLoaderImpl(create_config_search_path(str(conf_dir())))


@pytest.fixture(scope="session")
def composer(loader) -> Composer:
    master = loader.load_configuration("config", [], RunMode.MULTIRUN)
    return Composer(loader, master)


@pytest.fixture(scope="session")
def proposed(composer) -> Callable[..., Proposal]:
    """The trial, or the refusal, that these overrides of a tiny run lead to."""

    def propose(*words: str, number: int = 0, **settings) -> Proposal:
        return propose_one(composer, (*TINY, *words), SweepSettings(**settings), number)

    return propose


@pytest.fixture(scope="session")
def words_of() -> Callable[..., Sequence[str]]:
    return lambda *words: (*TINY, *words)


@pytest.fixture(scope="session")
def ray_of_all(tmp_path_factory) -> Generator[str, None, None]:
    """The address of a Ray for all sweeps that do not mind whose it is: none starts one anew."""
    with lasting_ray(tmp_path_factory.mktemp("ray"), 3) as address:
        yield address
