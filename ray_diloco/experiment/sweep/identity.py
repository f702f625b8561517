"""What makes a trial another one: every setting but those that say where and how it is run."""

import hashlib
from dataclasses import asdict

from ray_diloco.experiment.events import as_json
from ray_diloco.experiment.schema import Config, TimeKind

_NO_RESULT = {
    "run": ("progress", "log_level", "report", "debug", "preflight", "resume", "run_id"),
    "hub": ("endpoint", "repo_id", "host", "port"),
    "diloco": ("state_dir",),
    "security": ("signing_key",),
}
_NO_RESULT_GROUPS = ("ray", "sweep", "search", "tracking")


def key_of(config: Config) -> str:
    """64 hexadecimal digits of everything that can change what comes out. ``config`` is complete.
    Virtual time keeps to the profiles, whether real time would or not.
    """
    plain = asdict(config)
    if config.time.kind is TimeKind.virtual:
        plain["time"]["emulate_profile"] = True
    kept = {
        group: {name: value for name, value in values.items() if matters(f"{group}.{name}")}
        for group, values in plain.items()
        if matters(group)
    }
    return hashlib.sha256(as_json(kept).encode()).hexdigest()


def matters(name: str) -> bool:
    """Whether this group, or ``group.setting``, can change what comes out of a trial."""
    group, _, setting = name.partition(".")
    return group not in _NO_RESULT_GROUPS and setting not in _NO_RESULT.get(group, ())
