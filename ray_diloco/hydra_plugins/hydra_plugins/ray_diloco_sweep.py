"""Where Hydra looks for plugins: a thin face of `ray_diloco.experiment.sweep`, which is imported
only when a sweep starts. The folder is a namespace that other plugins share: it has no __init__.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from ray_diloco.experiment.conf_folder import conf_dir


class RayPoolLauncher(Launcher):
    """`hydra/launcher=ray_pool`."""

    def __init__(self, **settings: Any) -> None:
        self._settings = settings

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        del task_function  # a worker knows what to run
        self._hydra_context, self._config = hydra_context, config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        from ray_diloco.experiment.sweep.launcher import launch

        loader = self._hydra_context.config_loader
        return launch(self._settings, loader, self._config, job_overrides, first=initial_job_idx)

    def search(self, words: Sequence[str]) -> None:
        """For `OptunaSweeper`, which proposes a trial when another one has ended."""
        from ray_diloco.experiment.sweep.search_launch import search

        search(self._settings, self._hydra_context.config_loader, self._config, words)


class GridSweeper(Sweeper):
    """`hydra/sweeper=grid`."""

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        self._params = dict(params or {})

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        from hydra.core.plugins import Plugins

        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        from ray_diloco.experiment.sweep.grid import sweep

        assert self.config is not None
        assert self.launcher is not None
        return sweep(self._words(arguments), self.launcher, self.config)

    def _words(self, arguments: Sequence[str]) -> list[str]:
        return [*(f"{name}={values}" for name, values in self._params.items()), *arguments]


class OptunaSweeper(GridSweeper):
    """`hydra/sweeper=optuna`."""

    def sweep(self, arguments: list[str]) -> Any:
        from ray_diloco.errors import ConfigError

        if not isinstance(self.launcher, RayPoolLauncher):
            chosen = type(self.launcher).__name__
            raise ConfigError(
                "hydra/launcher", chosen, "expected ray_pool with hydra/sweeper=optuna"
            )
        self.launcher.search(self._words(arguments))


class RayDilocoSearchPath(SearchPathPlugin):
    """Other Hydra applications can compose the groups of ray-diloco."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        path = str(conf_dir())
        if path not in [each.path.removeprefix("file://") for each in search_path.get_path()]:
            search_path.append(provider="ray-diloco", path=f"file://{path}")
