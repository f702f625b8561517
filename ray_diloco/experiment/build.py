"""From a checked configuration to the plans of all participants."""

import hashlib
import json
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from ray_diloco.cluster.hub_service import HubAccess
from ray_diloco.cluster.inner_schedule import inner_steps_of
from ray_diloco.cluster.settings import master_id, node_ids, node_profiles
from ray_diloco.errors import ConfigError
from ray_diloco.experiment.legible import is_file_in, settings_of
from ray_diloco.experiment.reading import to_plain
from ray_diloco.experiment.run_files import CONFIG, STATE
from ray_diloco.experiment.schema import Config, EngineName, Role, TimeKind
from ray_diloco.hub.settings import HubKind
from ray_diloco.master.plan import MasterPlan
from ray_diloco.node.plan import NodePlan
from ray_diloco.protocol.rules import RULE_SETTINGS
from ray_diloco.protocol.run import RunIdentity, RunLimits
from ray_diloco.protocol.settings import DilocoSettings
from ray_diloco.timing.profile import ASKS, NodeProfile

FIXED_DILOCO = ("inner_steps", "outer_lr", "outer_momentum", "install", "compat")
FREE_MODEL = ("activation_checkpointing", "allow_targets", "weights")
FREE_DATA = ("batch_size", "allow_targets")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """Everybody who takes part from here."""

    nodes: tuple[NodePlan, ...]
    master: MasterPlan | None


def complete(config: Config) -> Config:
    """With what one setting takes from others: ``inner.schedule_steps`` when it is null,
    ``time.kind`` when it is auto. ConfigError for limits that are none, and for a run that ends
    before its warm-up does.
    """
    config = replace(config, time=replace(config.time, kind=_time_of(config)))
    config.run.check()
    if config.inner.schedule_steps is not None or config.run.max_steps is None:
        return config
    inner, steps = config.inner, config.run.max_steps
    if inner.schedule == "cosine" and steps <= inner.warmup_steps:
        least = f"expected more than inner.warmup_steps ({inner.warmup_steps})"
        raise ConfigError("run.max_steps", steps, f"{least}, or inner.schedule=constant")
    return replace(config, inner=replace(inner, schedule_steps=steps))


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
        "model": {k: v for k, v in plain["model"].items() if k not in FREE_MODEL},
        "data": {k: v for k, v in plain["data"].items() if k not in FREE_DATA},
        "diloco": {k: plain["diloco"][k] for k in FIXED_DILOCO} | _rules(config.diloco),
    }
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()


def _rules(diloco: DilocoSettings) -> dict[str, Any]:
    """The outer rules that are not those of the plain protocol."""
    plain = DilocoSettings()
    found = {name: getattr(diloco, name) for name in RULE_SETTINGS}
    return {name: value for name, value in found.items() if value != getattr(plain, name)}


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
    plain["cluster"] = _without_asks(plain["cluster"])
    kept = ("diloco", "cluster", "data", "model", "inner", "time", "checkpoint")
    run = ("seed", "role", "max_steps", "max_seconds", "max_tokens", "threads_per_node")
    parts = [{name: plain["run"][name] for name in run}, *(plain[name] for name in kept)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:8]


def _without_asks(cluster: dict[str, Any]) -> dict[str, Any]:
    """Without what nodes ask Ray for, which changes nothing of what is simulated."""

    def without(profile: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in profile.items() if name not in ASKS}

    overrides = {name: without(values) for name, values in cluster["overrides"].items()}
    return cluster | {
        "profiles": [without(each) for each in cluster["profiles"]],
        "overrides": {name: values for name, values in overrides.items() if values},
    }


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


def nodes_here(config: Config) -> tuple[str, ...]:
    """The ids of the nodes that run here."""
    if config.run.role is Role.standby:
        return ()
    return tuple(config.cluster.run_here) or node_ids(config.cluster)


def leader_here(config: Config) -> str | None:
    """The id of the master that runs here."""
    leader = master_id(config.cluster)
    match config.run.role:
        case Role.master:
            return leader
        case Role.standby:
            return f"{leader}-standby"
        case _:
            return None


def state_folder(config: Config, run_dir: Path) -> Path:
    """Where participants keep what they resume from, a folder each."""
    chosen = config.diloco.state_dir
    return (Path(chosen).expanduser() if chosen else run_dir / STATE).absolute()


def _node_plans(config: Config, shared: dict[str, Any], state: Path) -> tuple[NodePlan, ...]:
    here = nodes_here(config)
    master = master_id(config.cluster)
    virtual = config.time.kind is TimeKind.virtual
    emulate = config.time.emulate_profile or virtual
    steps = inner_steps_of(config.diloco, config.cluster)
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
            **_with_steps(_with_limits(shared, profile if virtual else None), steps[node_id]),
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


def _with_steps(shared: dict[str, Any], inner_steps: int) -> dict[str, Any]:
    """With the node's own number of local steps between boundaries."""
    return shared | {"diloco": replace(shared["diloco"], inner_steps=inner_steps)}


def _role_of(config: Config, *, is_master: bool) -> Role:
    """Of one node: in a run with a master only the node under its id is one."""
    if config.run.role is Role.master:
        return Role.master if is_master else Role.worker
    return config.run.role


def _master_plan(config: Config, shared: dict[str, Any], state: Path) -> MasterPlan | None:
    leader = leader_here(config)
    if leader is None:
        return None
    shared = shared | {"device": _masters_device(config)}
    return MasterPlan(
        master_id=leader,
        standby=config.run.role is Role.standby,
        expected=node_ids(config.cluster),
        resume=config.run.resumes,
        work_seconds=config.cluster.master_seconds,
        state_dir=state / "master",
        **shared,
    )


def _masters_device(config: Config) -> str:
    """On a joined Ray it sees only GPUs that it asked for."""
    unasked = config.ray.address is not None and not config.ray.master_num_gpus
    return "cpu" if unasked and config.engine.name is EngineName.ray else config.run.device


def _earlier_run_id(run_dir: Path) -> str:
    if is_file_in(run_dir, CONFIG):
        settings = settings_of(run_dir / CONFIG, holds="the configuration of a run")
        if (known := OmegaConf.select(settings, "run.run_id")) is not None:
            return str(known)
    raise ConfigError(
        "run.run_id",
        None,
        "expected the id of the run with run.resume=true, or run.resume=<its folder>",
    )
