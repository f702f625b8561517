"""What the actors of a run ask Ray for, from its settings. Pure."""

from collections.abc import Sequence

from ray_diloco.cluster.misplacement import GIB
from ray_diloco.cluster.participants import name_of_master
from ray_diloco.cluster.placement import Ask, Placement
from ray_diloco.cluster.settings import ClusterSettings, RaySettings, node_profiles
from ray_diloco.timing.profile import NodeProfile


def placement_of(
    cluster: ClusterSettings,
    ray: RaySettings,
    *,
    nodes: Sequence[str],
    leader: str | None,
    device: str,
) -> Placement:
    """Of the ``nodes`` that run here, and of the master when there is a ``leader``. On a Ray that
    is started here nobody asks for anything, so that any number of nodes can be simulated.
    """
    asks = {
        node_id: _of_node(cluster, ray, node_id, number, profile, device=device)
        for number, (node_id, profile) in enumerate(node_profiles(cluster))
        if node_id in nodes
    }
    if leader is not None:
        asks[name_of_master(leader)] = _of_master(ray)
    return Placement(asks=asks, strategy=ray.strategy)


def _of_node(
    cluster: ClusterSettings,
    ray: RaySettings,
    node_id: str,
    number: int,
    profile: NodeProfile,
    *,
    device: str,
) -> Ask:
    own = node_id in cluster.overrides
    prefix = f"overrides.{node_id}" if own else f"profiles[{number % len(cluster.profiles)}]"
    if ray.address is None:
        return Ask(prefix=f"cluster.{prefix}.")
    gpus = 1.0 if device.startswith("cuda") else 0.0
    asked = {
        **profile.resources,
        "CPU": profile.num_cpus,
        "GPU": gpus if profile.num_gpus is None else profile.num_gpus,
        "memory": profile.memory_gb * GIB,
    }
    return Ask(
        prefix=f"cluster.{prefix}.",
        resources={name: amount for name, amount in asked.items() if amount > 0},
        labels=profile.label_selector,
    )


def _of_master(ray: RaySettings) -> Ask:
    joined = ray.address is not None
    labels, gpus = (ray.master_label_selector, ray.master_num_gpus) if joined else ({}, 0.0)
    return Ask(
        prefix="ray.master_",
        resources={"GPU": gpus} if gpus else {},
        labels=labels,
        apart=False,
        stays=not labels and not gpus,
    )
