"""Which nodes there are and how fast each is: group ``cluster``; and how Ray is started: group
``ray``.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Any
from urllib.parse import urlsplit

from ray_diloco.cluster.availability import read_availability, there_only
from ray_diloco.cluster.labels import require_conditions
from ray_diloco.cluster.placement import Strategy
from ray_diloco.errors import ConfigError
from ray_diloco.hub.settings import LARGEST_PORT
from ray_diloco.protocol.paths import NODE_ID_RULE, is_node_id
from ray_diloco.protocol.settings import DURATION, LONGEST_SECONDS
from ray_diloco.timing.profile import GPUS, RATE, NodeProfile, fits_gpus, fits_rate

MOST_NODES = 10_000
"""Each is a thread or a process."""
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
        if not 1 <= self.nodes <= MOST_NODES:
            raise ConfigError("cluster.nodes", self.nodes, f"expected 1 to {MOST_NODES}")
        if not 0 <= self.master_seconds <= LONGEST_SECONDS:
            raise ConfigError(
                "cluster.master_seconds",
                self.master_seconds,
                f"expected 0 to {LONGEST_SECONDS:g} seconds",
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
            if value is not None and not fits_rate(value):
                raise ConfigError(f"cluster.{name}", value, f"expected {RATE}, or null")
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
    strategy: Strategy = Strategy.spread
    """How nodes are dealt to machines: spread (evenly), strict_spread (one machine each) or pack
    (few machines)."""
    master_label_selector: dict[str, str] = field(default_factory=dict)
    """Labels of the master's machine, as in `cluster.profiles[i].label_selector`; empty: the
    machine of this process, where the embedded hub is too."""
    master_num_gpus: float = 0.0
    """GPUs, also a part of one, that the master asks a joined Ray for; 0: it evaluates on the CPU
    there."""
    autoscales: bool = False
    """The joined Ray starts machines when they are asked for: what none of those that are there can
    take is waited for, not refused. Only actors that ask for something make it start one."""
    start_seconds: float = 600.0
    """Within so many seconds all actors must have started, and a machine must be there for one that
    has lost its own and fits on no other."""
    restarts: int = 5
    """How often each node, the master and the embedded hub are started again, on a machine that
    lives, when their process has died; after 1 s, then each time twice as long, 60 s at most. In
    virtual time only what the scenario says happens."""
    num_cpus: int | None = None
    """CPUs that a Ray started here believes in; null: as many as there are."""
    object_store_memory: int = LEAST_OBJECT_STORE
    """Bytes for Ray's object store, when started here; no tensor goes through it."""
    include_dashboard: bool = False
    """Start Ray's dashboard; takes a gigabyte."""
    metrics_port: int | None = None
    """Port at which Prometheus reads the metrics of a Ray started here; null: any free one."""
    detach: bool = False
    """Return as soon as the run trains; it goes on in the background, for ray-diloco-status and
    ray-diloco-stop."""

    def check(self) -> None:
        """ConfigError for the first setting that cannot be used."""
        if self.address is not None and not _is_ray(self.address):
            raise ConfigError(
                "ray.address",
                self.address,
                "expected auto, <host>:<port>, ray://<host>:<port>, or null to start a Ray here",
            )
        self._check_placement()
        if self.num_cpus is not None and self.num_cpus < 1:
            raise ConfigError("ray.num_cpus", self.num_cpus, "expected at least 1, or null")
        if self.object_store_memory < LEAST_OBJECT_STORE:
            raise ConfigError(
                "ray.object_store_memory",
                self.object_store_memory,
                f"expected at least {LEAST_OBJECT_STORE} bytes",
            )
        if self.metrics_port is not None:
            self._check_metrics_port(self.metrics_port)

    def _check_metrics_port(self, port: int) -> None:
        """Ray would run on without its metrics."""
        if self.address is not None:
            expected = "expected null with ray.address: ray start --metrics-export-port sets it"
            raise ConfigError("ray.metrics_port", port, expected)
        if not 1 <= port <= LARGEST_PORT:
            raise ConfigError("ray.metrics_port", port, f"expected 1 to {LARGEST_PORT}, or null")

    def _check_placement(self) -> None:
        require_conditions("ray.master_label_selector", self.master_label_selector)
        if not fits_gpus(self.master_num_gpus):
            raise ConfigError("ray.master_num_gpus", self.master_num_gpus, f"expected {GPUS}")
        if self.restarts < 0:
            raise ConfigError("ray.restarts", self.restarts, "expected at least 0")
        if not 0 < self.start_seconds <= LONGEST_SECONDS:
            raise ConfigError("ray.start_seconds", self.start_seconds, f"expected {DURATION}")
        if self.autoscales and self.strategy is Strategy.strict_spread:
            raise ConfigError(
                "ray.strategy",
                self.strategy.value,
                "expected spread or pack with ray.autoscales: which machines there are is not "
                "known before they are asked for",
            )


def _is_ray(address: str) -> bool:
    """Whether a Ray could be there."""
    place = address if address.startswith("ray://") else f"ray://{address}"
    try:
        parts = urlsplit(place)
        named = bool(parts.hostname) and bool(parts.port) and parts.username is None
    except ValueError:  # a port that is no number, brackets that do not close
        return False
    return address == "auto" or (named and not parts.path and not parts.query)


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
        require_conditions(f"{setting}.label_selector", profile.label_selector)
    except ConfigError as error:
        name = error.setting.rsplit(".", 1)[-1]
        raise ConfigError(f"{setting}.{name}", error.value, error.expected) from None
    except TypeError as error:
        raise ConfigError(setting, profile, f"expected numbers: {error}") from None


def _require_known(setting: str, node_id: str, settings: ClusterSettings) -> None:
    known = node_ids(settings)
    if node_id not in known:
        raise ConfigError(setting, node_id, f"expected the id of a node: {', '.join(known)}")
