"""The whole configuration as one typed value. A field's docstring is its entry in the reference."""

from dataclasses import dataclass, field
from enum import StrEnum

from ray_diloco.cluster.settings import ClusterSettings, RaySettings
from ray_diloco.errors import ConfigError
from ray_diloco.experiment.sweep.search_settings import SearchSettings
from ray_diloco.experiment.sweep.settings import SweepSettings
from ray_diloco.experiment.tracking.settings import TrackingSettings
from ray_diloco.hub.security import SecuritySettings
from ray_diloco.hub.settings import HubSettings
from ray_diloco.node.settings import CheckpointSettings
from ray_diloco.protocol.settings import DURATION, LONGEST_SECONDS, DilocoSettings
from ray_diloco.workload.settings import DataSettings, InnerSettings, ModelSettings

MOST_THREADS = 1024
"""Of one node: more than any machine has cores."""


class Role(StrEnum):
    """What this run is to the exchange."""

    master = "master"
    worker = "worker"
    standby = "standby"
    single = "single"


class EngineName(StrEnum):
    """What participants are."""

    ray = "ray"
    inproc = "inproc"


class TimeKind(StrEnum):
    """Whose time the run lives in."""

    auto = "auto"
    wall = "wall"
    virtual = "virtual"


class ProgressKind(StrEnum):
    """How a run shows itself while it runs."""

    auto = "auto"
    live = "live"
    plain = "plain"
    none = "none"


class LogLevel(StrEnum):
    """The least that is written to the run's log."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Group ``run``. The first of the three limits to come ends the run."""

    name: str = "run"
    """What the run is called; begins its id and the name of its repository."""
    run_id: str | None = None
    """Which run this is; null: made, or on resume and for a worker that of the run it finds."""
    seed: int = 0
    """Every random draw starts here."""
    role: Role = Role.master
    """master (nodes and the outer loop), worker (nodes that join a run led elsewhere), standby (no
    node: it takes over when the master is silent for diloco.lease_seconds), or single (one node
    that trains alone, without a hub: what to compare with)."""
    max_steps: int | None = None
    """Local steps of each node; null: no limit."""
    max_seconds: float | None = None
    """Seconds of the run's time; null: no limit."""
    max_tokens: int | None = None
    """Tokens of all nodes together, once they are merged: what is under way then comes on top, some
    times as much with long rounds. null: no limit."""
    threads_per_node: int = 1
    """Threads that torch uses in each node and in the master; 1 and 2 give different last bits."""
    device: str = "auto"
    """auto (cuda, else mps, else cpu), cpu, mps, cuda or cuda:<index>."""
    resume: str | None = None
    """The folder of a run to go on with: its configuration, which the command line may change but
    for what makes the run that it is, its hub and its state; its result then stands for the whole.
    true: the run that the repository holds, in a new folder. null: a new run."""
    takeover: bool = False
    """Train under node ids that another process seems to use still."""
    progress: ProgressKind = ProgressKind.auto
    """live (a table), plain (lines), none, or auto: live on a terminal."""
    log_level: LogLevel = LogLevel.INFO
    """The least that is written to the run folder's log: DEBUG, INFO, WARNING or ERROR."""
    report: bool = True
    """Draw report.html at the end: the losses, the timeline and all numbers of the run."""
    alone: bool = False
    """At the end train the fastest node alone, in virtual time, for as long as the run took: its
    held-out loss is ``alone_eval_loss`` of the result, what all the others must be worth."""
    preflight: bool = False
    """Print what the exchange will cost (commits, bytes and storage an hour, and what to change
    when they are too many) and, of a Ray that is joined, which machine each actor goes to, and run
    nothing."""
    debug: bool = False
    """Show the whole traceback of an error."""

    @property
    def resumes(self) -> bool:
        """An earlier run goes on."""
        return self.resume is not None and self.resume.lower() not in ("false", "null", "none")

    def check(self) -> None:
        """ConfigError for the first setting that cannot be used."""
        for name in ("max_steps", "max_seconds", "max_tokens"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"run.{name}", value, "expected a number above 0, or null")
        if self.max_seconds is not None and self.max_seconds > LONGEST_SECONDS:
            raise ConfigError("run.max_seconds", self.max_seconds, f"expected {DURATION}, or null")
        if self.max_steps is None and self.max_seconds is None and self.max_tokens is None:
            raise ConfigError(
                "run.max_steps", None, "expected a limit here, in run.max_seconds or run.max_tokens"
            )
        if not 1 <= self.threads_per_node <= MOST_THREADS:
            raise ConfigError(
                "run.threads_per_node", self.threads_per_node, f"expected 1 to {MOST_THREADS}"
            )
        if self.seed < 0:
            raise ConfigError("run.seed", self.seed, "expected at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Group ``engine``."""

    name: EngineName = EngineName.ray
    """ray (each node and the master an actor) or inproc (threads of this process)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSettings:
    """Group ``time``."""

    kind: TimeKind = TimeKind.wall
    """wall, virtual (simulated), or auto: virtual, unless something real takes part, such as a Ray
    cluster (``ray.address``), a hub that others share (``hub=huggingface``, ``hub.endpoint``) or a
    run that is led elsewhere (``run.role=worker``)."""
    emulate_profile: bool = True
    """In wall time: slow each node and its link down to its profile in the cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that a run is made from, by group."""

    run: RunSettings = field(default_factory=RunSettings)
    """What is run, for how long, and where."""
    diloco: DilocoSettings = field(default_factory=DilocoSettings)
    """The exchange: when nodes send, what the master does with it."""
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    """Which nodes there are and how fast each is."""
    data: DataSettings = field(default_factory=DataSettings)
    """What is trained on, and how it is dealt to the nodes."""
    model: ModelSettings = field(default_factory=ModelSettings)
    """What is trained."""
    inner: InnerSettings = field(default_factory=InnerSettings)
    """How a node trains between two boundaries."""
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    """What a node keeps on its disk, to go on after it was killed."""
    hub: HubSettings = field(default_factory=HubSettings)
    """Where the repository is that everything goes through. A token is never a setting."""
    security: SecuritySettings = field(default_factory=SecuritySettings)
    """Who may take part by signature, beside who may write to the repository."""
    engine: EngineSettings = field(default_factory=EngineSettings)
    """What participants are: actors or threads."""
    time: TimeSettings = field(default_factory=TimeSettings)
    """Whose time the run lives in."""
    ray: RaySettings = field(default_factory=RaySettings)
    """How Ray is started or found."""
    tracking: TrackingSettings = field(default_factory=TrackingSettings)
    """Which service gets the curves, beside the run's own TensorBoard files. Where it is, and as
    whom one is there, its own environment variables say."""
    sweep: SweepSettings = field(default_factory=SweepSettings)
    """What `ray-diloco -m` makes of many runs: repetitions, resuming, what is best."""
    search: SearchSettings = field(default_factory=SearchSettings)
    """How `ray-diloco -m hydra/sweeper=optuna` chooses points, instead of trying all of a grid."""
