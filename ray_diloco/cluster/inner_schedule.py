"""How many local steps each node takes between two boundaries. Pure."""

import math

from ray_diloco.cluster.settings import ClusterSettings, node_profiles
from ray_diloco.protocol.fragments import gap
from ray_diloco.protocol.settings import DilocoSettings

ROUNDING = 1e-9
"""What a share of whole steps may lack by the rounding of its seconds."""


def inner_steps_of(diloco: DilocoSettings, cluster: ClusterSettings) -> dict[str, int]:
    """By node id, in the order of their shards. Speeds are those that the profiles state, in wall
    time too: they never depend on a measurement, so that a run can be repeated and resumed.
    """
    profiles = node_profiles(cluster)
    if diloco.inner_schedule == "fixed":
        return dict.fromkeys((node_id for node_id, _ in profiles), diloco.inner_steps)
    fastest = min(profile.seconds_per_step for _, profile in profiles)
    return {
        node_id: dylu(diloco.inner_steps, seconds=profile.seconds_per_step, fastest=fastest)
        for node_id, profile in profiles
    }


def boundary_steps_of(diloco: DilocoSettings, cluster: ClusterSettings) -> dict[str, int]:
    """How many lie between two boundaries: fewer where each sends a fragment of the model."""
    steps = inner_steps_of(diloco, cluster)
    return {node_id: gap(each, diloco.fragments) for node_id, each in steps.items()}


def dylu(inner_steps: int, *, seconds: float, fastest: float) -> int:
    """floor(v / v_max * H), at least 1, of a node whose steps take ``seconds`` where the fastest
    node's take ``fastest`` (arXiv 2401.09135, dynamic local updates).
    """
    return max(1, math.floor(inner_steps * fastest / seconds + ROUNDING))
