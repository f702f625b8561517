"""Whether a run can go on in its folder with a configuration, and has something left to do."""

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.build import FIXED_DILOCO, FREE_DATA, FREE_MODEL, complete
from ray_diloco.experiment.history import History
from ray_diloco.experiment.live_status import read_status
from ray_diloco.experiment.reading import read_config, to_plain
from ray_diloco.experiment.resuming import SET_ONCE, load_config
from ray_diloco.experiment.run_files import CONFIG
from ray_diloco.experiment.schema import Config, Role
from ray_diloco.protocol.rules import RULE_SETTINGS

FIXED = (
    *(*SET_ONCE, "run.role", "time.kind", "hub.kind", "hub.repo_id", "hub.branch"),
    *("cluster.nodes", "cluster.node_ids", "cluster.master", "cluster.master_trains"),
    *("inner.name", "inner.custom"),
)
"""Other names of nodes, or another number, would deal the data anew and find no checkpoints."""
LIMITS = ("max_steps", "max_seconds", "max_tokens")


def check_resume(config: Config, run_dir: Path, history: History) -> None:
    """ConfigError, before anything starts, when the run in this folder cannot go on with this
    completed configuration, or has nothing left to do.
    """
    if not config.run.resumes or not (run_dir / CONFIG).exists():
        return
    _require_idle(config, run_dir)
    earlier = complete(read_config(load_config(run_dir)))
    if earlier.run.role is Role.single:
        expected = "expected a run with a hub: role=single keeps no checkpoint to go on from"
        raise ConfigError("run.resume", config.run.resume, expected)
    before, now = fixed_settings(earlier), fixed_settings(config)
    for name, value in before.items():
        if now[name] != value and not (name == "run.run_id" and now[name] is None):
            expected = f"expected {value!r}, as in the run that goes on"
            raise ConfigError(name, now[name], f"{expected}; on resume may change: {changeable()}")
    _require_work(config, earlier, history)


def _require_idle(config: Config, run_dir: Path) -> None:
    live = read_status(run_dir)
    if live is not None and live.here and live.alive and live.pid != os.getpid():
        raise ConfigError(
            "run.resume",
            config.run.resume,
            f"this run goes on in process {live.pid} on {live.host}; ray-diloco-stop ends it",
        )


def fixed_settings(config: Config) -> dict[str, Any]:
    """What must be on resume as it was, by dotted name."""
    plain = to_plain(config)
    names = [*FIXED, *(f"diloco.{name}" for name in (*FIXED_DILOCO, *RULE_SETTINGS))]
    names += [f"model.{name}" for name in plain["model"] if name not in FREE_MODEL]
    names += [f"data.{name}" for name in plain["data"] if name not in FREE_DATA]
    return {name: plain[name.split(".")[0]][name.split(".")[1]] for name in names}


def changeable() -> str:
    """What need not be: groups as a whole, and single settings of the others."""
    fixed = fixed_settings(Config())
    told: list[str] = []
    for group in fields(Config):
        names = [each.name for each in fields(getattr(Config(), group.name))]
        free = [name for name in names if f"{group.name}.{name}" not in fixed]
        whole = len(free) == len(names)
        told.append(f"{group.name}.*" if whole else f"{group.name}.({' '.join(free)})")
    return ", ".join(told)


def _require_work(config: Config, earlier: Config, history: History) -> None:
    """A run that has ended goes on when it is extended, or has not handed over all that it did."""
    result = history.result
    if result is None or result["status"] != "done":
        return
    if result["unsent_local_steps"] or result["unresolved_local_steps"]:
        return
    if any(getattr(config.run, name) != getattr(earlier.run, name) for name in LIMITS):
        return
    if config.diloco != earlier.diloco:  # another rule may merge what waits
        return
    reasons = sorted({each["stop_reason"] for each in result["nodes"].values()})
    raise ConfigError(
        "run.resume",
        config.run.resume,
        f"this run is finished ({'; '.join(reasons) or result['stop_reason']}) and its folder is "
        "as it was; expected another run.max_steps, run.max_seconds or run.max_tokens to go on",
    )
