"""Which nodes there are and how fast each is: group ``cluster``; and how Ray is started: group
``ray``.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Any

from ray_diloco.cluster.availability import read_availability, there_only
from ray_diloco.errors import ConfigError
from ray_diloco.protocol.paths import NODE_ID_RULE, is_node_id
from ray_diloco.timing.profile import NodeProfile

LEAST_OBJECT_STORE = 78_643_200
"""Bytes; Ray refuses less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Group ``cluster``. Node i takes profile i modulo their number, so a cluster scales with
    ``cluster.nodes``.
    """

    nodes: int = 4
    """How many nodes train."""
    node_ids: list[str] = field(default_factory=list)
    """Their ids, as many as nodes; empty: n0, n1, ..."""
    profiles: list[NodeProfile] = field(default_factory=lambda: [NodeProfile()])
    """How fast a machine and its link are; node i takes profile i modulo their number."""
    overrides: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Single fields of a profile by node id, such as ``{n1: {seconds_per_step: 2.0}}``."""
    hub_up_mbps: float | None = None
    """A link towards the hub that all nodes share, in megabits per second; null: no limit. Like
    `hub_down_mbps` and `availability`, simulated in virtual time only."""
    hub_down_mbps: float | None = None
    """The same from the hub."""
    availability: str | None = None
    """A CSV file (node, from, until; seconds) with the stretches in which each machine is there;
    between them it is dead. Nodes that it does not name are always there. null: none."""
    master: str | None = None
    """The id under which the outer loop runs; null: the first node's."""
    master_trains: bool = True
    """The master is also a node, under the same id; false: it is a participant of its own."""
    master_seconds: float = 0.1
    """What a merge takes the master, and an evaluation beside it, in seconds of virtual time;
    everybody else goes on meanwhile. In wall time it takes what it takes."""
    run_here: list[str] = field(default_factory=list)
    """Ids of the nodes that this process runs, when others run elsewhere; empty: all."""

    def check(self) -> None:
        """ConfigError for the first setting that cannot be used."""
        if self.nodes < 1:
            raise ConfigError("cluster.nodes", self.nodes, "expected at least 1")
        if not 0 <= self.master_seconds < float("inf"):
            raise ConfigError(
                "cluster.master_seconds", self.master_seconds, "expected seconds, at least 0"
            )
        self._check_ids()
        self._check_profiles()
        self._check_shared()
        self._check_master()
        for node_id in self.run_here:
            _require_known("cluster.run_here", node_id, self)

    def _check_ids(self) -> None:
        if self.node_ids and len(self.node_ids) != self.nodes:
            raise ConfigError(
                "cluster.node_ids",
                self.node_ids,
                f"expected as many as cluster.nodes ({self.nodes}), or none",
            )
        for number, node_id in enumerate(self.node_ids):
            if not is_node_id(node_id):
                raise ConfigError("cluster.node_ids", node_id, f"expected {NODE_ID_RULE}")
            if node_id in self.node_ids[:number]:
                raise ConfigError("cluster.node_ids", node_id, "expected each id once")

    def _check_profiles(self) -> None:
        if not self.profiles:
            raise ConfigError("cluster.profiles", self.profiles, "expected at least one")
        for number, profile in enumerate(self.profiles):
            _check_profile(f"cluster.profiles[{number}]", profile)
        for node_id, values in self.overrides.items():
            _require_known("cluster.overrides", node_id, self)
            _check_profile(
                f"cluster.overrides.{node_id}", _overridden(NodeProfile(), node_id, values)
            )

    def _check_shared(self) -> None:
        for name in ("hub_up_mbps", "hub_down_mbps"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"cluster.{name}", value, "expected a number above 0, or null")
        for node_id in read_availability(self.availability) if self.availability else ():
            _require_known("cluster.availability", node_id, self)
        for node_id, profile in node_profiles(self):
            _check_profile(f"cluster.profiles (of {node_id})", profile)

    def _check_master(self) -> None:
        master = master_id(self)
        if self.master_trains:
            _require_known("cluster.master", master, self)
        elif not is_node_id(master):
            raise ConfigError("cluster.master", master, f"expected {NODE_ID_RULE}")
        elif master in node_ids(self):
            raise ConfigError(
                "cluster.master",
                master,
                "expected another id than the nodes' with master_trains=false",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RaySettings:
    """Group ``ray``."""

    address: str | None = None
    """A Ray cluster to join, such as auto or ray://host:10001; null: start one on this machine."""
    num_cpus: int | None = None
    """CPUs that a Ray started here believes in; null: as many as there are."""
    object_store_memory: int = LEAST_OBJECT_STORE
    """Bytes for Ray's object store, when started here; no tensor goes through it."""
    include_dashboard: bool = False
    """Start Ray's dashboard; takes a gigabyte."""

    def check(self) -> None:
        """ConfigError for the first setting that cannot be used."""
        if self.num_cpus is not None and self.num_cpus < 1:
            raise ConfigError("ray.num_cpus", self.num_cpus, "expected at least 1, or null")
        if self.object_store_memory < LEAST_OBJECT_STORE:
            raise ConfigError(
                "ray.object_store_memory",
                self.object_store_memory,
                f"expected at least {LEAST_OBJECT_STORE} bytes",
            )


def node_ids(settings: ClusterSettings) -> tuple[str, ...]:
    """The ids of all nodes, in the order of their shards."""
    return tuple(settings.node_ids) or tuple(f"n{index}" for index in range(settings.nodes))


def master_id(settings: ClusterSettings) -> str:
    """The id under which the outer loop runs; ``master`` when it does not train and has no name."""
    if settings.master is not None:
        return settings.master
    return node_ids(settings)[0] if settings.master_trains else "master"


def node_profiles(settings: ClusterSettings) -> list[tuple[str, NodeProfile]]:
    """Each node's id and profile in the order of their shards: overrides, the hub's link and the
    availability trace applied.
    """
    profiles, traces = settings.profiles, {}
    if settings.availability is not None:
        traces = read_availability(settings.availability)
    found: list[tuple[str, NodeProfile]] = []
    for index, node_id in enumerate(node_ids(settings)):
        profile = profiles[index % len(profiles)]
        profile = _overridden(profile, node_id, settings.overrides.get(node_id, {}))
        profile = _behind_the_hubs_link(profile, settings)
        if node_id in traces:
            profile = there_only(profile, traces[node_id])
        found.append((node_id, profile))
    return found


def _behind_the_hubs_link(profile: NodeProfile, settings: ClusterSettings) -> NodeProfile:
    up, down = settings.hub_up_mbps, settings.hub_down_mbps
    return replace(
        profile,
        shared_up=profile.shared_up | ({} if up is None else {"hub": up}),
        shared_down=profile.shared_down | ({} if down is None else {"hub": down}),
    )


def _overridden(profile: NodeProfile, node_id: str, values: dict[str, Any]) -> NodeProfile:
    known = {each.name for each in fields(NodeProfile)}
    for name in values:
        if name not in known:
            raise ConfigError(
                f"cluster.overrides.{node_id}", name, f"expected one of {', '.join(sorted(known))}"
            )
    return replace(profile, **values)


def _check_profile(setting: str, profile: NodeProfile) -> None:
    """The profile's own check, its settings named as they are written in the configuration."""
    try:
        profile.check("x")
    except ConfigError as error:
        name = error.setting.rsplit(".", 1)[-1]
        raise ConfigError(f"{setting}.{name}", error.value, error.expected) from None
    except TypeError as error:
        raise ConfigError(setting, profile, f"expected numbers: {error}") from None


def _require_known(setting: str, node_id: str, settings: ClusterSettings) -> None:
    known = node_ids(settings)
    if node_id not in known:
        raise ConfigError(setting, node_id, f"expected the id of a node: {', '.join(known)}")
