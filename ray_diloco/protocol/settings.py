"""The settings of the exchange, for nodes and master alike; names follow the plain protocol
where it has them.
"""

from dataclasses import dataclass

from ray_diloco.errors import ConfigError

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


LONGEST_SECONDS = 1e9
"""Thirty years: longer than any run, and short enough for every clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DilocoSettings:
    """Group ``diloco``. Durations in seconds."""

    inner_steps: int = 500
    """Local steps between two inner boundaries."""
    outer_lr: float = 0.7
    """Learning rate of the outer step."""
    outer_momentum: float = 0.9
    """Nesterov momentum of the outer step, in [0, 1)."""
    poll_interval: float = 60.0
    """How often a node looks for a newer global between boundaries, and the master for deltas."""
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
    compat: bool = False
    """Write nothing that a plain peer could not read (complex entries, codecs are refused)."""

    def check(self) -> None:
        """ConfigError for the first setting that cannot be used."""
        self._check_amounts()
        _one_of("install", self.install, ("rebase", "boundary", "replace"))
        _one_of("install_mismatch", self.install_mismatch, ("error", "ignore"))
        for name in ("max_delta_norm", "max_relative_norm"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"diloco.{name}", value, "expected a number above 0, or null")
        self._check_codec()
        self._check_retention()
        self._check_lease()

    def _check_codec(self) -> None:
        _one_of("codec", self.codec, CODEC_NAMES)
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
        if not 3 * self.poll_interval <= self.lease_seconds < float("inf"):
            raise ConfigError(
                "diloco.lease_seconds",
                self.lease_seconds,
                f"expected at least three times diloco.poll_interval={self.poll_interval}, or null",
            )

    def _check_amounts(self) -> None:
        for name in ("inner_steps", "max_bad_deltas", "max_deltas_per_round", "outer_state_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"diloco.{name}", getattr(self, name), "expected at least 1")
        for name in ("poll_interval", "bootstrap_timeout", "stop_timeout", "node_timeout"):
            if not 0 < getattr(self, name) <= LONGEST_SECONDS:
                raise ConfigError(
                    f"diloco.{name}",
                    getattr(self, name),
                    f"expected seconds above 0, and at most {LONGEST_SECONDS:.0e}",
                )
        if not 0 < self.outer_lr < float("inf"):
            raise ConfigError("diloco.outer_lr", self.outer_lr, "expected a number above 0")
        if not 0 <= self.outer_momentum < 1:
            raise ConfigError(
                "diloco.outer_momentum", self.outer_momentum, "expected 0 up to, not including, 1"
            )


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"diloco.{name}", value, f"expected one of {', '.join(choices)}")
