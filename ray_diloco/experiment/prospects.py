"""What the cluster's numbers make of a run, said before it starts where it is hardly as meant."""

import math

from ray_diloco.cluster.inner_schedule import ROUNDING, boundary_steps_of, inner_steps_of
from ray_diloco.cluster.settings import node_profiles
from ray_diloco.experiment.delta_size import delta_bytes
from ray_diloco.experiment.schema import Config, Role, TimeKind
from ray_diloco.timing.profile import NodeProfile

MOST_NAMES = 4
"""Nodes that a line names; further ones are counted."""
SHARES_OF_DYLU = 4
"""Local steps of the slowest node from which on rounding them down costs it little."""


def prospects(config: Config) -> list[str]:
    """A line, with numbers, for each expectation that some nodes will not meet."""
    virtual = config.time.kind is TimeKind.virtual
    if config.run.role is Role.single or not (virtual or config.time.emulate_profile):
        return []
    profiles = node_profiles(config.cluster)
    between = _between(profiles, config)
    lines = [] if virtual else _only_simulated(profiles, config)
    lines += _never_at_a_boundary(profiles, between, config) + _starved(profiles, config)
    lines += _never_a_quorum(config)
    size = delta_bytes(config)
    lines += _uploads_too_long(profiles, between, size)
    return lines + _links_too_narrow(profiles, between, size)


def _never_at_a_boundary(
    profiles: list[tuple[str, NodeProfile]], between: dict[str, float], config: Config
) -> list[str]:
    """The time from a node's first step to its first boundary against the time that it has."""
    short: list[str] = []
    every = config.diloco.inner_steps
    for node_id, profile in profiles:
        ends = [end for end in (config.run.max_seconds, profile.leave_at) if end is not None]
        needed = between[node_id]
        there = min(ends, default=float("inf")) - profile.join_at
        if there < needed:
            short.append(f"{node_id} has {max(0.0, there):.4g} s and needs {needed:.4g} s")
    if not short:
        return []
    return [
        f"not all nodes reach a boundary (diloco.inner_steps={every}) before the end: "
        f"{_some(short)}; they send one delta at most"
    ]


def _starved(profiles: list[tuple[str, NodeProfile]], config: Config) -> list[str]:
    """Whole steps against the shares that dynamic local updates round down."""
    every, least = config.diloco.inner_steps, _least_for_dylu(profiles)
    if config.diloco.inner_schedule != "dylu" or every >= least:
        return []
    fastest = min(profile.seconds_per_step for _, profile in profiles)
    steps = inner_steps_of(config.diloco, config.cluster)
    short = [
        f"{node_id} takes {steps[node_id]}, its share is {share:.4g}"
        for node_id, profile in profiles
        if (share := every * fastest / profile.seconds_per_step) - steps[node_id] > ROUNDING
        or share < 1
    ]
    if not short:
        return []
    return [
        f"diloco.inner_schedule=dylu cannot give slow nodes their share of diloco.inner_steps="
        f"{every} in whole steps: {_some(short)}; {least}, four times the fastest speed over the "
        "slowest, would do"
    ]


def _never_a_quorum(config: Config) -> list[str]:
    """Of nodes that wait for the merge, a delta each is all that ever waits."""
    diloco, nodes = config.diloco, config.cluster.nodes
    if diloco.merge != "quorum" or not diloco.nodes_wait or diloco.min_deltas <= nodes:
        return []
    return [
        f"diloco.min_deltas={diloco.min_deltas} deltas never wait: each of {nodes} nodes sends one "
        "and waits (diloco.wait_for_merge), so every round takes "
        f"diloco.max_wait={diloco.max_wait:g} s"
    ]


def _least_for_dylu(profiles: list[tuple[str, NodeProfile]]) -> int:
    seconds = [profile.seconds_per_step for _, profile in profiles]
    return math.ceil(SHARES_OF_DYLU * max(seconds) / min(seconds) - ROUNDING)


def _uploads_too_long(
    profiles: list[tuple[str, NodeProfile]], between: dict[str, float], size: int
) -> list[str]:
    """A delta over the node's own link against the time between two boundaries."""
    slow: list[str] = []
    for node_id, profile in profiles:
        upload = profile.link.transfer_time("up", size) / 1e6
        pause = between[node_id]
        if upload > pause:
            slow.append(f"{node_id} uploads {upload:.4g} s, a boundary comes every {pause:.4g} s")
    if not slow:
        return []
    return [
        f"a delta of {size / 1e6:.4g} MB takes longer than the steps between two boundaries, so "
        f"boundaries will be skipped: {_some(slow)}"
    ]


def _links_too_narrow(
    profiles: list[tuple[str, NodeProfile]], between: dict[str, float], size: int
) -> list[str]:
    """What all nodes behind a shared link together want to send over it."""
    wanted: dict[tuple[str, float], float] = {}
    for node_id, profile in profiles:
        for link in profile.shared_up.items():
            wanted[link] = wanted.get(link, 0.0) + size * 8 / 1e6 / between[node_id]
    return [
        f"all nodes together want to send {sent:.4g} Mb/s over {_link(name)}={limit:g}, so "
        "boundaries will be skipped"
        for (name, limit), sent in wanted.items()
        if sent > limit
    ]


def _link(name: str) -> str:
    return "cluster.hub_up_mbps" if name == "hub" else f"shared_up.{name}"


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


def _between(profiles: list[tuple[str, NodeProfile]], config: Config) -> dict[str, float]:
    """Seconds of local steps from one boundary of a node to its next."""
    steps = boundary_steps_of(config.diloco, config.cluster)
    return {node_id: steps[node_id] * profile.seconds_per_step for node_id, profile in profiles}


def _some(parts: list[str]) -> str:
    more = len(parts) - MOST_NAMES
    return "; ".join(parts[:MOST_NAMES]) + (f"; and {more} more" if more > 0 else "")
