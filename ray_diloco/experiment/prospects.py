"""What the cluster's numbers make of a run, said before it starts where it is hardly as meant."""

from ray_diloco.cluster.settings import node_profiles
from ray_diloco.experiment.schema import Config, Role, TimeKind
from ray_diloco.timing.profile import NodeProfile
from ray_diloco.workload.models import estimate_bytes

MOST_NAMES = 4
"""Nodes that a line names; further ones are counted."""


def prospects(config: Config) -> list[str]:
    """A line, with numbers, for each expectation that some nodes will not meet."""
    virtual = config.time.kind is TimeKind.virtual
    if config.run.role is Role.single or not (virtual or config.time.emulate_profile):
        return []
    profiles = node_profiles(config.cluster)
    lines = [] if virtual else _only_simulated(profiles, config)
    lines += _never_at_a_boundary(profiles, config)
    size = estimate_bytes(config.model)
    if size is not None:
        lines += _uploads_too_long(profiles, config, size) + _hub_too_narrow(profiles, config, size)
    return lines


def _never_at_a_boundary(profiles: list[tuple[str, NodeProfile]], config: Config) -> list[str]:
    """The time from a node's first step to its first boundary against the time that it has."""
    short: list[str] = []
    every = config.diloco.inner_steps
    for node_id, profile in profiles:
        ends = [end for end in (config.run.max_seconds, profile.leave_at) if end is not None]
        needed = every * profile.seconds_per_step
        there = min(ends, default=float("inf")) - profile.join_at
        if there < needed:
            short.append(f"{node_id} has {max(0.0, there):.4g} s and needs {needed:.4g} s")
    if not short:
        return []
    return [
        f"not all nodes reach a boundary (diloco.inner_steps={every}) before the end: "
        f"{_some(short)}; they send one delta at most"
    ]


def _uploads_too_long(
    profiles: list[tuple[str, NodeProfile]], config: Config, size: int
) -> list[str]:
    """A delta over the node's own link against the time between two boundaries."""
    slow: list[str] = []
    for node_id, profile in profiles:
        upload = profile.link.transfer_time("up", size) / 1e6
        between = _between(profile, config)
        if upload > between:
            slow.append(f"{node_id} uploads {upload:.4g} s, a boundary comes every {between:.4g} s")
    if not slow:
        return []
    return [
        f"a delta of {size / 1e6:.4g} MB takes longer than the steps between two boundaries, so "
        f"boundaries will be skipped: {_some(slow)}"
    ]


def _hub_too_narrow(
    profiles: list[tuple[str, NodeProfile]], config: Config, size: int
) -> list[str]:
    """What all nodes together want to send against the hub's link."""
    limit = config.cluster.hub_up_mbps
    wanted = sum(size * 8 / 1e6 / _between(profile, config) for _, profile in profiles)
    if limit is None or wanted <= limit:
        return []
    return [
        f"all nodes together want to send {wanted:.4g} Mb/s, cluster.hub_up_mbps={limit:g} carries "
        "less, so boundaries will be skipped"
    ]


def _only_simulated(profiles: list[tuple[str, NodeProfile]], config: Config) -> list[str]:
    plain = NodeProfile()
    names = ("shared_up", "shared_down", "join_at", "leave_at", "crash_at", "away")
    used = [
        name
        for name in names
        if any(getattr(profile, name) != getattr(plain, name) for _, profile in profiles)
    ]
    if not used:
        return []
    return [f"time={config.time.kind.value} knows no {', '.join(used)}: only time=virtual does"]


def _between(profile: NodeProfile, config: Config) -> float:
    return config.diloco.inner_steps * profile.seconds_per_step


def _some(parts: list[str]) -> str:
    more = len(parts) - MOST_NAMES
    return "; ".join(parts[:MOST_NAMES]) + (f"; and {more} more" if more > 0 else "")
