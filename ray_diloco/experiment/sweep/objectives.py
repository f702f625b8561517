"""The numbers of result.json that can be an objective, and how they are named."""

from collections.abc import Iterable

from ray_diloco.errors import ConfigError
from ray_diloco.protocol.choices import did_you_mean

OTHER_NAMES = {
    "loss": "eval_loss",
    "virtual_seconds": "run_seconds",
}
"""Of the run's time, virtual or real: result.json has one name for it."""

NUMBERS = (
    *("eval_loss", "initial_eval_loss", "run_seconds", "wall_seconds", "wall_start_seconds"),
    *("tokens", "tokens_merged", "outer_steps", "deltas_merged", "rejected_deltas", "conflicts"),
    *("bytes_up", "bytes_down", "requests", "commits", "commits_per_hour", "fallback_rounds"),
    *("dropped_local_steps", "unsent_local_steps", "unresolved_local_steps"),
    *("skipped_boundaries", "overflows"),
)


def objective_of(setting: str, name: str, known: Iterable[str] = NUMBERS) -> str:
    """The number's name in result.json. ConfigError for one that is not ``known``."""
    known = tuple(known)
    meant = OTHER_NAMES.get(name, name)
    if meant in known:
        return meant
    hint = did_you_mean(name, (*known, *OTHER_NAMES)) or f", one of {', '.join(known)}"
    raise ConfigError(setting, name, f"expected a number of result.json{hint}")
