"""How much a trial takes of the machines, and whether it may start beside those that run."""

from collections.abc import Collection
from dataclasses import dataclass

from ray_diloco.cluster.capacity import Capacity
from ray_diloco.errors import ConfigError
from ray_diloco.experiment.room import MASTER_COPIES, NODE_COPIES
from ray_diloco.experiment.schema import Config, EngineName, Role
from ray_diloco.experiment.sweep.settings import LauncherSettings
from ray_diloco.workload.outline import estimate_bytes

PROCESS_BYTES = 350 * 2**20
"""Of a process that has imported torch: 331 MiB resident were measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Of one trial. ``worker_cpus``: what its own process holds; ``bundles``: CPUs of each bundle
    of its placement group, empty when it needs none.
    """

    worker_cpus: float
    memory: float
    bundles: tuple[float, ...] = ()

    @property
    def cpus(self) -> float:
        return self.worker_cpus + sum(self.bundles)


def need_of(config: Config, settings: LauncherSettings, capacity: Capacity) -> Need:
    """A trial in one process holds as many CPUs as one of its threads of computation has. The
    actors of one with `engine=ray` hold a gang: a bundle for each node where all fit, else one
    machine that they share. ConfigError when the cluster never has as much.
    """
    memory = settings.memory_per_trial or _memory(config)
    threads = float(config.run.threads_per_node)
    if config.engine.name is EngineName.inproc:
        need = Need(worker_cpus=settings.cpus_per_trial or threads, memory=memory)
    else:
        bundles = _bundles(config.cluster.nodes, threads, settings, capacity)
        need = Need(worker_cpus=0.0, memory=memory, bundles=bundles)
    largest = max(need.worker_cpus, *need.bundles, 0.0)
    if largest > capacity.largest:
        name = (
            "hydra.launcher.cpus_per_trial" if settings.cpus_per_trial else "run.threads_per_node"
        )
        raise ConfigError(
            name, largest, f"expected at most {capacity.largest:g}: no machine has more"
        )
    return need


def may_start(
    need: Need, running: Collection[Need], capacity: Capacity, settings: LauncherSettings
) -> bool:
    """Beside those that run; alone it always may, so that every trial has its turn."""
    if not running:
        return True
    if settings.max_concurrent is not None and len(running) >= settings.max_concurrent:
        return False
    cpus = need.cpus + sum(each.cpus for each in running)
    memory = need.memory + sum(each.memory for each in running)
    return cpus <= capacity.cpus and memory <= capacity.memory


def _bundles(
    nodes: int, threads: float, settings: LauncherSettings, capacity: Capacity
) -> tuple[float, ...]:
    if settings.cpus_per_trial is not None:
        return (settings.cpus_per_trial,)
    if nodes * threads <= capacity.cpus:
        return (threads,) * nodes
    return (max(threads, min(capacity.largest, capacity.cpus)),)


def _memory(config: Config) -> float:
    """Processes, and the copies of the model in them; a model of the user's own counts as nothing,
    since only its own process may build it.
    """
    nodes = config.cluster.nodes
    leads = config.run.role is Role.master
    copies = nodes * NODE_COPIES + leads * MASTER_COPIES
    processes = 1 if config.engine.name is EngineName.inproc else nodes + leads + 2
    size = 0 if config.model.name == "custom" else estimate_bytes(config.model)
    return processes * PROCESS_BYTES + copies * size
