"""Group ``search``: how `hydra/sweeper=optuna` chooses its trials."""

from dataclasses import dataclass, field
from enum import StrEnum

from ray_diloco.errors import ConfigError

EVAL_LOSS = "eval_loss"
TRIALS = 20


class SamplerName(StrEnum):
    """What proposes the next point."""

    tpe = "tpe"
    random = "random"
    grid = "grid"
    cmaes = "cmaes"
    nsga2 = "nsga2"


class PrunerName(StrEnum):
    """What ends a trial early."""

    none = "none"
    median = "median"
    successive_halving = "successive_halving"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """Group ``search``. Means something with ``hydra/sweeper=optuna`` only."""

    sampler: SamplerName = SamplerName.tpe
    """tpe (tree-structured Parzen estimators), random, grid (every combination; no intervals),
    cmaes (numbers only, one objective) or nsga2 (for several objectives)."""
    trials: int | None = None
    """Points to try, refused ones among them; null: 20, and all of a grid."""
    seed: int = 0
    """Of the sampler's draws; what they lead to also depends on the order in which trials end."""
    objectives: list[str] = field(default_factory=lambda: [EVAL_LOSS])
    """Numbers of result.json to make small. Several, such as ``[eval_loss, run_seconds]``: the
    answer has the front of points that no other one beats in all of them. ``virtual_seconds`` is
    another name of run_seconds."""
    pruner: PrunerName = PrunerName.none
    """none, median or successive_halving: end a trial early whose held-out loss is worse than that
    of others was at the same time of the run. Needs ``objectives=[eval_loss]`` and
    ``sweep.seeds=1``."""
    prune_every: float | None = None
    """Seconds of the run's time between two marks at which trials are compared; null: a tenth of
    ``run.max_seconds``."""
    prune_after: int = 5
    """With pruner=median: how many trials must have ended before one is ended early."""
    storage: str | None = None
    """Where the search is kept, to go on with ``sweep.resume=true``: a journal file, or a URL of a
    database such as ``sqlite:///search.db``; null: search.journal in the sweep folder."""
    study: str = "ray-diloco"
    """The name of the search in its storage."""

    def check(self, *, seeds: int = 1) -> None:
        """ConfigError for the first setting that cannot be used. ``seeds``: how often each point is
        run.
        """
        if self.trials is not None and self.trials < 1:
            raise _refused("trials", self.trials, "expected at least 1, or null")
        if self.seed < 0 or self.prune_after < 0:
            name = "seed" if self.seed < 0 else "prune_after"
            raise _refused(name, getattr(self, name), "expected at least 0")
        if not self.objectives or len(set(self.objectives)) < len(self.objectives):
            raise _refused("objectives", self.objectives, "expected at least one, each once")
        if self.sampler is SamplerName.cmaes and len(self.objectives) > 1:
            raise _refused("sampler", "cmaes", "expected another one with several objectives")
        if self.prune_every is not None and not 0 < self.prune_every < float("inf"):
            raise _refused("prune_every", self.prune_every, "expected seconds above 0, or null")
        self._check_pruner(seeds)

    def _check_pruner(self, seeds: int) -> None:
        if self.pruner is PrunerName.none:
            return
        if self.objectives != [EVAL_LOSS]:
            raise _refused(
                "pruner", self.pruner.value, f"expected none where objectives is not [{EVAL_LOSS}]"
            )
        if seeds > 1:
            raise _refused("pruner", self.pruner.value, "expected none with several sweep.seeds")

    def mark_seconds(self, max_seconds: float | None) -> float | None:
        """Between two marks; None without a pruner. ConfigError when nothing says how much."""
        if self.pruner is PrunerName.none:
            return None
        if self.prune_every is not None:
            return self.prune_every
        if max_seconds is None:
            raise _refused("prune_every", None, "expected seconds where run.max_seconds is null")
        return max_seconds / 10


def _refused(name: str, value: object, expected: str) -> ConfigError:
    return ConfigError(f"search.{name}", value, expected)
