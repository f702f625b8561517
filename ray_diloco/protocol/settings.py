"""The settings of the exchange, for nodes and master alike; names follow the plain protocol
where it has them.
"""

from dataclasses import dataclass

from ray_diloco.errors import ConfigError
from ray_diloco.protocol.choices import require_choice
from ray_diloco.protocol.rules import check_fragments, check_rules

CODEC_NAMES = (
    "fp32",
    "bf16",
    "fp16",
    "int8",
    "int4",
    "fp4_e3m0",
    "topk_8",
    "topk",
    "topk_128",
)
"""The codecs that `ray_diloco.tensors.codec` has."""


LEAST_SECONDS = 1e-3
"""A wait that is shorter only burns time."""
LONGEST_SECONDS = 1e9
"""Thirty years: longer than any run, and short enough for every clock."""
DURATION = f"seconds above 0, {LONGEST_SECONDS:g} at most"
LEAST_MBPS = 1e-9
"""A link on which a byte takes a hundred days."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DilocoSettings:
    """Group ``diloco``. Durations in seconds."""

    inner_steps: int = 500
    """Local steps between two inner boundaries."""
    outer_lr: float = 0.7
    """Learning rate of the outer step."""
    outer_momentum: float = 0.9
    """Nesterov momentum of the outer step, in [0, 1); adam's first beta."""
    outer: str = "nesterov"
    """How deltas move the global: nesterov, sgd or adam take a step a round, by what the round's
    deltas combine to; delayed_nesterov and buffered take them one by one as they arrived.
    """
    outer_arrivals: int | None = None
    """delayed_nesterov: N, arrivals from one momentum update to the next; buffered: K, arrivals to
    one step; null: as many as there are nodes.
    """
    outer_c: float = 0.0
    """delayed_nesterov: the share of the momentum that every arrival applies, 0 to 1/N."""
    outer_beta2: float = 0.999
    """adam: decay of the second moment."""
    outer_eps: float = 0.1
    """adam: added to the root of the second moment; pseudo-gradients need a large one."""
    weighting: str = "equal"
    """What a delta counts for in its round: equal, or by what it was trained on: tokens (of its
    own steps) or shard_size (of its node's data, which the deltas then say).
    """
    staleness: str = "constant"
    """How a delta counts whose base is s outer steps old: constant, poly ((1+s)^-exponent), hinge
    (1 up to `staleness_after`, then falling), or drop (refused when above `max_staleness`).
    """
    staleness_exponent: float = 0.5
    """poly: the exponent."""
    staleness_slope: float = 10.0
    """hinge: a in 1 / (a * (s - b) + 1)."""
    staleness_after: int = 4
    """hinge: b, the outer steps for which nothing falls."""
    divide: str = "arrivals"
    """By what the sum of a round's deltas is divided: arrivals, or nodes (that live: a lone delta
    then moves the global by its share only).
    """
    aggregation: str = "mean"
    """How a round's deltas are combined: mean, median, trimmed_mean, krum, centered_clip or
    norm_clip. All but the mean need 3 deltas in a round, krum 2f + 3; of fewer it takes the mean.
    """
    trim_share: float = 0.25
    """trimmed_mean: the share that is cut from either end, at least one delta."""
    byzantine: int = 1
    """krum: f, how many deltas of a round may be wrong."""
    clip_radius: float | None = None
    """centered_clip, norm_clip: the longest a delta counts for (L2 norm); null: the median of the
    round.
    """
    clip_iterations: int = 5
    """centered_clip: how often the centre moves."""
    inner_schedule: str = "fixed"
    """How many local steps a node takes between boundaries: fixed (inner_steps), or dylu (as many
    as take the fastest node's time by the speeds that the cluster's profiles state, at least 1).
    """
    poll_interval: float = 60.0
    """How often a node looks for a newer global between boundaries, and the master for deltas."""
    merge: str = "poll"
    """When the master merges what waits: poll (at each look), grace (grace_seconds after the first
    arrival), quorum (when min_deltas wait, or max_wait after the first arrival), or synchronous
    (when a delta of every living node waits). When all nodes have ended it merges the rest.
    """
    grace_seconds: float = 0.5
    """With merge=grace: seconds from the first arrival that the master sees to the merge."""
    min_deltas: int = 4
    """With merge=quorum: how many deltas must wait."""
    max_wait: float = 60.0
    """With merge=quorum: seconds after which fewer are merged."""
    wait_for_merge: bool = False
    """After an upload a node waits for a global that contains it; merge=synchronous implies it."""
    reset_inner_optimizer: bool = True
    """Drop the inner optimizer's state after each accepted upload job and each installation."""
    async_delta_upload: bool = True
    """Upload beside the training; false blocks the training until the delta has landed."""
    async_global_poll: bool = True
    """Look for and fetch globals beside the training; false blocks."""
    install: str = "rebase"
    """What a node does with a newer global: rebase, boundary or replace."""
    install_mismatch: str = "error"
    """A key or shape of the global that does not match the model: error, or ignore (kept local
    and counted).
    """
    require_global: bool = True
    """A node does not train before it has a global; false trains at once and sends deltas with
    base -1.
    """
    bootstrap_timeout: float = 300.0
    """How long a node waits for the first global."""
    stop_timeout: float = 30.0
    """How long a node tries to send its last delta, and how long the master's last round may
    take.
    """
    node_timeout: float = 600.0
    """After so long without a sign a node counts as gone."""
    max_bad_deltas: int = 3
    """A node stops with an error after so many deltas in a row that are not finite."""
    accept_unbased: bool = False
    """The master merges deltas of nodes that never had a global."""
    max_delta_norm: float | None = None
    """The largest L2 norm of a delta that is merged; null: no limit."""
    max_relative_norm: float | None = None
    """The same as a multiple of the running median of the merged norms; null: no limit."""
    max_staleness: int | None = None
    """Refuse deltas whose base is more outer steps old at the merge; null: no limit."""
    max_deltas_per_round: int = 256
    """The most deltas that one round merges, each an open file; the rest follow at once in the
    next.
    """
    keep_merged: int = 0
    """Outer steps for which a merged delta stays in the repository; 0: gone with its
    publication.
    """
    outer_state_every: int = 1
    """Rounds from one publication of the outer state to the next; between them merged deltas stay,
    and a master that starts again replays those rounds.
    """
    lease_seconds: float | None = None
    """After so long without a publication or a heartbeat of the master a standby takes over; null:
    no heartbeat, no standby.
    """
    state_dir: str | None = None
    """Where nodes and master keep what they resume from; null: ``state`` in the run's folder."""
    codec: str = "fp32"
    """How deltas are written: fp32, bf16, fp16, int8, int4, fp4_e3m0, topk (1 in 32 numbers),
    topk_8 or topk_128.
    """
    codec_decay: float = 1.0
    """Share of a codec's error that goes out with later deltas; the rest is given up."""
    fragments: int = 1
    """P: the model is cut into so many, strided over its layers; a boundary comes every
    inner_steps / P local steps and sends one of them, in turn. 1: whole models.
    """
    fragment_mix: float = 0.0
    """With fragments: how much of its own weights a node keeps where it installs, 0 (takes the
    global's) to 1. Steps that the global cannot have yet always stay in full.
    """
    compat: bool = False
    """Write nothing that a plain peer could not read (complex entries, codecs are refused)."""

    @property
    def nodes_wait(self) -> bool:
        """A node trains on only when what it sent has been merged."""
        return self.wait_for_merge or self.merge == "synchronous"

    def check(self) -> None:
        """ConfigError for the first setting that cannot be used."""
        self._check_amounts()
        require_choice("diloco.inner_schedule", self.inner_schedule, ("fixed", "dylu"))
        require_choice("diloco.merge", self.merge, ("poll", "grace", "quorum", "synchronous"))
        require_choice("diloco.install", self.install, ("rebase", "boundary", "replace"))
        require_choice("diloco.install_mismatch", self.install_mismatch, ("error", "ignore"))
        for name in ("max_delta_norm", "max_relative_norm"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"diloco.{name}", value, "expected a number above 0, or null")
        self._check_codec()
        self._check_retention()
        check_fragments(self)
        check_rules(self)
        self._check_lease()

    def _check_codec(self) -> None:
        require_choice("diloco.codec", self.codec, CODEC_NAMES)
        if self.compat and self.codec != "fp32":
            raise ConfigError(
                "diloco.codec",
                self.codec,
                "expected fp32 with diloco.compat=true: a plain peer reads nothing else",
            )
        if not 0 <= self.codec_decay <= 1 or (self.codec == "fp32" and self.codec_decay != 1):
            raise ConfigError(
                "diloco.codec_decay", self.codec_decay, "expected 0 to 1, and 1 with codec fp32"
            )

    def _check_retention(self) -> None:
        for name in ("max_staleness", "keep_merged"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigError(f"diloco.{name}", value, "expected at least 0")

    def _check_lease(self) -> None:
        """Between two signs of life of a master lie at most half a lease and one look."""
        if self.lease_seconds is None:
            return
        if not 3 * self.poll_interval <= self.lease_seconds <= LONGEST_SECONDS:
            raise ConfigError(
                "diloco.lease_seconds",
                self.lease_seconds,
                f"expected at least three times diloco.poll_interval={self.poll_interval}, "
                f"{LONGEST_SECONDS:g} at most, or null",
            )

    def _check_amounts(self) -> None:
        for name in (
            "inner_steps",
            "min_deltas",
            "max_bad_deltas",
            "max_deltas_per_round",
            "outer_state_every",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"diloco.{name}", getattr(self, name), "expected at least 1")
        for name in (
            "poll_interval",
            "max_wait",
            "bootstrap_timeout",
            "stop_timeout",
            "node_timeout",
        ):
            if not LEAST_SECONDS <= getattr(self, name) <= LONGEST_SECONDS:
                raise ConfigError(
                    f"diloco.{name}",
                    getattr(self, name),
                    f"expected seconds, {LEAST_SECONDS:g} to {LONGEST_SECONDS:g}",
                )
        if not 0 <= self.grace_seconds <= LONGEST_SECONDS:
            raise ConfigError(
                "diloco.grace_seconds", self.grace_seconds, "expected seconds, at least 0"
            )
        if not 0 < self.outer_lr < float("inf"):
            raise ConfigError("diloco.outer_lr", self.outer_lr, "expected a number above 0")
        if not 0 <= self.outer_momentum < 1:
            raise ConfigError(
                "diloco.outer_momentum", self.outer_momentum, "expected 0 up to, not including, 1"
            )
