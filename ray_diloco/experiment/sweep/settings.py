"""Group ``sweep``: what `ray-diloco -m` makes of many runs; and the launcher's own settings."""

from dataclasses import dataclass

from ray_diloco.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSettings:
    """Group ``sweep``. Means something with `-m` only."""

    seeds: int = 1
    """How often each point is run, with ``run.seed`` 0, 1, ...; 1: once, as configured."""
    resume: bool = False
    """Run only what is missing in ``hydra.sweep.dir``, or did not end well there."""
    engine: str = "inproc"
    """What participants of trials are where the command line does not choose an ``engine``: inproc
    (a trial is one process, many run at once) or ray."""
    objective: str = "eval_loss"
    """The number of result.json that says which trial is best; the least is."""
    shown: int = 10
    """How many of the best trials the table at the end shows."""

    def check(self) -> None:
        """ConfigError for the first setting that cannot be used."""
        for name in ("seeds", "shown"):
            if getattr(self, name) < 1:
                raise ConfigError(f"sweep.{name}", getattr(self, name), "expected at least 1")
        if self.engine not in ("inproc", "ray"):
            raise ConfigError("sweep.engine", self.engine, "expected inproc or ray")


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherSettings:
    """``hydra.launcher`` of ray_pool. None: derived from the machine and from each trial."""

    max_concurrent: int | None = None
    """Trials that run at once, at most."""
    trial_timeout: float | None = None
    """Real seconds after which a trial is killed."""
    retries: int = 0
    """How often a trial that failed, died or ran out of time is tried again."""
    fail_fast: bool = False
    """End the sweep with the first trial that does not end well."""
    cpus_per_trial: float | None = None
    """CPUs that a trial holds."""
    memory_per_trial: float | None = None
    """Bytes that a trial is expected to need."""

    def check(self) -> None:
        """ConfigError for the first setting that cannot be used."""
        if self.max_concurrent is not None and self.max_concurrent < 1:
            _refuse("max_concurrent", self.max_concurrent, "expected at least 1, or null")
        if self.retries < 0:
            _refuse("retries", self.retries, "expected at least 0")
        for name in ("trial_timeout", "cpus_per_trial", "memory_per_trial"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                _refuse(name, value, "expected a number above 0, or null")


def _refuse(name: str, value: object, expected: str) -> None:
    raise ConfigError(f"hydra.launcher.{name}", value, expected)
