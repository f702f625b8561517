"""Where an experiment meets the cluster: what a run is played on, by its settings."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from ray_diloco.cluster.asks import placement_of
from ray_diloco.cluster.engine import Engine
from ray_diloco.cluster.hub_service import HubAccess
from ray_diloco.cluster.launch import Stage as ClusterStage
from ray_diloco.cluster.placement import Placement
from ray_diloco.cluster.shared_hub import SharedHub
from ray_diloco.experiment.build import leader_here, nodes_here
from ray_diloco.experiment.schema import Config, EngineName, Role, TimeKind
from ray_diloco.hub.connect import endpoint_of
from ray_diloco.hub.entrance import find_token
from ray_diloco.hub.listening import require_address
from ray_diloco.hub.settings import HubKind, HubSettings
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


def open_stage(
    config: Config,
    identity: RunIdentity,
    *,
    shared_hub: SharedHub | None = None,
    gang: Any = None,
) -> AbstractContextManager[Stage]:
    """Ray or this process, as the configuration says. ``shared_hub``, ``gang``: of a sweep; see
    `cluster.launch.Stage`. ConfigError when the hub's address cannot be had, PermanentHubError when
    there is no token for it: both before anything starts.
    """
    hub = config.hub
    alone = config.run.role is Role.single or hub.kind is HubKind.memory
    served = hub.kind is HubKind.embedded and hub.endpoint is None
    if not alone and not served:
        find_token(endpoint_of(hub))
    elif not alone and shared_hub is None and config.ray.address is None:
        require_address(hub.host, hub.port)
    return ClusterStage(
        config.ray,
        engine=config.engine.name.value,
        virtual=config.time.kind is TimeKind.virtual,
        header=f"{identity.config_hash} {config.run.threads_per_node}",
        seed=config.run.seed,
        run=identity,
        resumes=config.run.resumes,
        shared_hub=shared_hub,
        gang=gang,
        placement=_placement(config),
    )


def places(config: Config) -> list[str]:
    """Which actors would go to which machine of the Ray that the run joins, a line for each; none
    for a run that starts its own. ConfigError when one could never start.
    """
    if config.ray.address is None or config.engine.name is not EngineName.ray:
        return []
    with ClusterStage(
        config.ray, engine="ray", virtual=False, placement=_placement(config)
    ) as stage:
        return stage.places()


def _placement(config: Config) -> Placement:
    return placement_of(
        config.cluster,
        config.ray,
        nodes=nodes_here(config),
        leader=leader_here(config),
        device=config.run.device,
    )
