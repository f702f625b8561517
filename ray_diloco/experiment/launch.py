"""Where an experiment meets the cluster: what a run is played on, by its settings."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from ray_diloco.cluster.engine import Engine
from ray_diloco.cluster.hub_service import HubAccess
from ray_diloco.cluster.launch import Stage as ClusterStage
from ray_diloco.experiment.schema import Config, TimeKind
from ray_diloco.hub.settings import HubSettings
from ray_diloco.protocol.run import RunIdentity


class Stage(Protocol):
    """What a run is played on; entered, it ends what it started."""

    def open_hub(
        self, settings: HubSettings, *, run_id: str, leads: bool, run_dir: Path
    ) -> HubAccess:
        """The way to a repository that is there, private and writable; UsageError and HubError say
        what is missing.
        """
        ...

    def open_engine(self, run_dir: Path, *, log_level: str) -> Engine:
        """An engine that has not started."""
        ...

    def trace_hash(self) -> str | None:
        """What happened in virtual time, as one hash; None in wall time."""
        ...


class OpenStage(Protocol):
    """Gives the stage of a run."""

    def __call__(self, config: Config, identity: RunIdentity) -> AbstractContextManager[Stage]: ...


def open_stage(config: Config, identity: RunIdentity) -> AbstractContextManager[Stage]:
    """Ray or this process, as the configuration says."""
    return ClusterStage(
        config.ray,
        engine=config.engine.name.value,
        virtual=config.time.kind is TimeKind.virtual,
        header=f"{identity.config_hash} {config.run.threads_per_node}",
        seed=config.run.seed,
        run=identity,
        resumes=config.run.resumes,
    )
