"""The plain protocol's ``distributed:`` block as overrides of this configuration."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from yaml import YAMLError

from ray_diloco.errors import ConfigError

BLOCK = "distributed"

_SAME = {
    "inner_steps": "diloco.inner_steps",
    "poll_interval": "diloco.poll_interval",
    "outer_lr": "diloco.outer_lr",
    "outer_momentum": "diloco.outer_momentum",
    "reset_inner_optimizer": "diloco.reset_inner_optimizer",
    "async_delta_upload": "diloco.async_delta_upload",
    "async_global_poll": "diloco.async_global_poll",
    "delta_upload_shutdown_timeout": "diloco.stop_timeout",
    "state_dir": "diloco.state_dir",
    "repo_id": "hub.repo_id",
    "retry_initial": "hub.retry_first",
    "retry_max": "hub.retry_longest",
}
"""What only has another name here."""

_MEANINGLESS = {
    "collaborators": "write access is granted on the Hub's own pages; no call can",
    "cache_dir": "nothing is kept in the Hub's cache",
    "retry_attempts": "repetitions are bounded by time: hub.retry_deadline",
    "delta_upload_queue_size": "there is one upload at a time; later steps go into the next delta",
    "delta_upload_overflow": "a boundary that finds the upload busy is skipped and counted",
}
_OWN = ("enabled", "mode", "role", "node_id", "token")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainBlock:
    """``overrides`` for Hydra, and a line for each field that has no meaning here."""

    node_id: str
    overrides: tuple[str, ...]
    notes: tuple[str, ...]


def read_plain_block(path: Path) -> PlainBlock:
    """A YAML file with a ``distributed:`` block, or that block alone.

    ConfigError for what cannot be read, for a field that the block does not have, and for a token.
    """
    try:
        loaded: Any = OmegaConf.to_container(OmegaConf.load(path))
    except (OSError, YAMLError) as error:
        raise ConfigError("distributed_yaml", str(path), f"cannot be read: {error}") from None
    if not isinstance(loaded, dict):
        raise ConfigError("distributed_yaml", str(path), f"expected a {BLOCK}: block")
    block = loaded.get(BLOCK, loaded)
    beside = [str(key) for key in loaded if key != BLOCK] if block is not loaded else []
    notes = [f"{key}: not read, only the {BLOCK}: block is" for key in beside]
    return translate(block, notes=notes)


def translate(block: dict[str, Any], *, notes: Sequence[str] = ()) -> PlainBlock:
    """The block's fields as settings of this package."""
    _refuse(block)
    role = _role(block)
    if block.get("node_id") is None and role != "single":
        raise ConfigError(f"{BLOCK}.node_id", None, "expected an id that no other node has")
    overrides = {"run.role": role}
    overrides |= {_SAME[name]: block[name] for name in _SAME if block.get(name) is not None}
    told = [f"{BLOCK}.{name}: {_MEANINGLESS[name]}" for name in block if name in _MEANINGLESS]
    return PlainBlock(
        node_id=str(block.get("node_id") or "n0"),
        overrides=tuple(f"{name}={override_value(value)}" for name, value in overrides.items()),
        notes=(*notes, *told),
    )


def _refuse(block: dict[str, Any]) -> None:
    for name, value in block.items():
        if name not in (*_SAME, *_MEANINGLESS, *_OWN):
            known = ", ".join(sorted((*_SAME, *_MEANINGLESS, *_OWN)))
            raise ConfigError(f"{BLOCK}.{name}", value, f"expected one of {known}")
    if block.get("token") is not None:
        raise ConfigError(
            f"{BLOCK}.token", "***", "expected null; set HF_TOKEN or use `hf auth login`"
        )
    if _mode(block) not in ("dumb_diloco", "single"):
        raise ConfigError(f"{BLOCK}.mode", block["mode"], "expected dumb_diloco or single")


def _role(block: dict[str, Any]) -> str:
    """As the plain protocol reads it: not enabled is single; enabled without a role is master. A
    block that names a role and a repository and does not say `enabled` is meant.
    """
    meant = bool(block.get("role") and block.get("repo_id"))
    if not block.get("enabled", meant) or _mode(block) == "single":
        return "single"
    role = str(block.get("role", "single")).lower()
    if role not in ("single", "master", "worker"):
        raise ConfigError(f"{BLOCK}.role", role, "expected single, master or worker")
    if role == "single":
        return "master" if block.get("repo_id") else "worker"
    return role


def _mode(block: dict[str, Any]) -> str:
    return str(block.get("mode", "dumb_diloco")).lower()


def override_value(value: Any) -> str:
    """A value in Hydra's grammar of overrides."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case _:
            quoted = str(value).replace("\\", "\\\\").replace("'", "\\'")
            return f"'{quoted}'"
