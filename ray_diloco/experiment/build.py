"""From a checked configuration to the plans of all participants."""

import hashlib
import json
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ray_diloco.cluster.hub_service import HubAccess
from ray_diloco.cluster.settings import master_id, node_ids, node_profiles
from ray_diloco.errors import ConfigError
from ray_diloco.experiment.reading import to_plain
from ray_diloco.experiment.schema import Config, Role, TimeKind
from ray_diloco.hub.settings import HubKind
from ray_diloco.master.plan import MasterPlan
from ray_diloco.node.plan import NodePlan
from ray_diloco.protocol.run import RunIdentity, RunLimits
from ray_diloco.timing.profile import NodeProfile

CONFIG_FILE = "config.yaml"

_FIXED_DILOCO = ("inner_steps", "outer_lr", "outer_momentum", "install", "compat")
_FREE_MODEL = ("activation_checkpointing", "allow_targets")
_FREE_DATA = ("batch_size", "allow_targets")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """Everybody who takes part from here."""

    nodes: tuple[NodePlan, ...]
    master: MasterPlan | None


def complete(config: Config) -> Config:
    """With what one setting takes from others: ``inner.schedule_steps`` when it is null,
    ``time.kind`` when it is auto.
    """
    config = replace(config, time=replace(config.time, kind=_time_of(config)))
    if config.inner.schedule_steps is not None or config.run.max_steps is None:
        return config
    return replace(config, inner=replace(config.inner, schedule_steps=config.run.max_steps))


def _time_of(config: Config) -> TimeKind:
    if config.time.kind is not TimeKind.auto:
        return config.time.kind
    shared = config.hub.kind is HubKind.huggingface or config.hub.endpoint is not None
    led_elsewhere = config.run.role in (Role.worker, Role.standby)
    real = shared or led_elsewhere or config.ray.address is not None
    return TimeKind.wall if real else TimeKind.virtual


def config_hash(config: Config) -> str:
    """Of the settings that must not change on resume: the seed, the model, the data and the
    arithmetic of the exchange. 64 hexadecimal digits.
    """
    plain = to_plain(config)
    fixed: dict[str, Any] = {
        "seed": config.run.seed,
        "model": {k: v for k, v in plain["model"].items() if k not in _FREE_MODEL},
        "data": {k: v for k, v in plain["data"].items() if k not in _FREE_DATA},
        "diloco": {k: plain["diloco"][k] for k in _FIXED_DILOCO},
    }
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()


def identify(config: Config, run_dir: Path) -> RunIdentity:
    """Which run this is. The id is what the configuration says, on resume that of the run folder,
    for a worker and a standby "" (that of the run it finds), else new: drawn in wall time, derived
    from the configuration in virtual time.
    """
    fixed = config_hash(config)
    run_id = config.run.run_id
    if run_id is None and config.run.resumes:
        run_id = _earlier_run_id(run_dir)
    if run_id is None and config.run.role in (Role.worker, Role.standby):
        run_id = ""
    if run_id is None:
        virtual = config.time.kind is TimeKind.virtual
        run_id = f"{config.run.name}-{_fingerprint(config) if virtual else secrets.token_hex(4)}"
    return RunIdentity(run_id=run_id, config_hash=fixed, seed=config.run.seed)


def _fingerprint(config: Config) -> str:
    """8 hexadecimal digits of all that makes a simulated run what it is, whoever plays it."""
    plain = to_plain(config)
    kept = ("diloco", "cluster", "data", "model", "inner", "time", "checkpoint")
    run = ("seed", "role", "max_steps", "max_seconds", "max_tokens", "threads_per_node")
    parts = [{name: plain["run"][name] for name in run}, *(plain[name] for name in kept)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:8]


def build_plans(config: Config, identity: RunIdentity, access: HubAccess, run_dir: Path) -> Plans:
    """One plan for each participant that runs here. Paths are absolute."""
    state = state_folder(config, run_dir)
    shared = {
        "run": identity,
        "limits": RunLimits(
            max_steps=config.run.max_steps,
            max_seconds=config.run.max_seconds,
            max_tokens=config.run.max_tokens,
        ),
        "diloco": config.diloco,
        "model": config.model,
        "data": config.data,
        "hub": config.hub,
        "security": config.security,
        "endpoint": access.endpoint,
        "token": access.token,
        "repo_id": access.repo_id,
        "threads": config.run.threads_per_node,
        "device": config.run.device,
    }
    return Plans(
        nodes=_node_plans(config, shared, state), master=_master_plan(config, shared, state)
    )


def state_folder(config: Config, run_dir: Path) -> Path:
    """Where participants keep what they resume from, a folder each."""
    chosen = config.diloco.state_dir
    return (Path(chosen).expanduser() if chosen else run_dir / "state").absolute()


def _node_plans(config: Config, shared: dict[str, Any], state: Path) -> tuple[NodePlan, ...]:
    here = config.cluster.run_here or node_ids(config.cluster)
    if config.run.role is Role.standby:
        here = ()
    master = master_id(config.cluster)
    virtual = config.time.kind is TimeKind.virtual
    emulate = config.time.emulate_profile or virtual
    return tuple(
        NodePlan(
            node_id=node_id,
            role=_role_of(config, is_master=node_id == master).value,
            index=index,
            nodes=config.cluster.nodes,
            inner=config.inner,
            state_dir=state / node_id,
            profile=profile if emulate else None,
            takeover=config.run.takeover,
            checkpoint=config.checkpoint,
            resume=config.run.resumes,
            reopens=config.run.resumes and config.run.role is Role.master,
            **_with_limits(shared, profile if virtual else None),
        )
        for index, (node_id, profile) in enumerate(node_profiles(config.cluster))
        if node_id in here
    )


def _with_limits(shared: dict[str, Any], profile: NodeProfile | None) -> dict[str, Any]:
    """With the time at which a simulated node leaves."""
    leave_at = profile.leave_at if profile is not None else None
    if leave_at is None:
        return shared
    limits: RunLimits = shared["limits"]
    ends = [end for end in (limits.max_seconds, leave_at) if end is not None]
    return shared | {"limits": replace(limits, max_seconds=min(ends))}


def _role_of(config: Config, *, is_master: bool) -> Role:
    """Of one node: in a run with a master only the node under its id is one."""
    if config.run.role is Role.master:
        return Role.master if is_master else Role.worker
    return config.run.role


def _master_plan(config: Config, shared: dict[str, Any], state: Path) -> MasterPlan | None:
    standby = config.run.role is Role.standby
    if config.run.role is not Role.master and not standby:
        return None
    leader = master_id(config.cluster)
    return MasterPlan(
        master_id=f"{leader}-standby" if standby else leader,
        standby=standby,
        expected=node_ids(config.cluster),
        resume=config.run.resumes,
        work_seconds=config.cluster.master_seconds,
        state_dir=state / "master",
        **shared,
    )


def _earlier_run_id(run_dir: Path) -> str:
    try:
        settings = OmegaConf.load(run_dir / CONFIG_FILE)
        return str(OmegaConf.select(settings, "run.run_id", throw_on_missing=True))
    except (OSError, OmegaConfBaseException):
        raise ConfigError(
            "run.run_id",
            None,
            "expected the id of the run with run.resume=true, or run.resume=<its folder>",
        ) from None
