"""Everything that can be known to be wrong before any participant starts."""

import psutil

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.preflight import over_budget
from ray_diloco.experiment.prospects import prospects
from ray_diloco.experiment.schema import Config, EngineName, Role
from ray_diloco.hub.settings import HubKind
from ray_diloco.protocol.paths import is_node_id
from ray_diloco.workload.data import build_data, evaluation_batches, vocabulary_of
from ray_diloco.workload.devices import resolve_device
from ray_diloco.workload.fitting import check_vocabulary, check_workload
from ray_diloco.workload.models import estimate_bytes
from ray_diloco.workload.targets import find_target

NODE_COPIES = 6
"""Of the weights in a training node: themselves, gradients, AdamW's two, baseline, snapshot."""
MASTER_COPIES = 5
"""In the master: global, float32 copy, momentum, sum of the deltas, evaluation."""


def check_config(config: Config) -> str:
    """ConfigError for the first setting that cannot be used; reads the data and draws no weights.

    Gives the data's manifest hash. ``config`` must be completed already.
    """
    config.run.check()
    config.diloco.check()
    config.cluster.check()
    config.checkpoint.check()
    config.ray.check()
    config.hub.check()
    config.security.check()
    _check_run_name(config)
    _check_role(config)
    _check_hub(config)
    check_workload(config.model, config.data, config.inner)
    _check_targets(config)
    if config.ray.address is None:
        resolve_device(config.run.device)
    manifest = _check_data(config)
    _check_memory(config)
    return manifest


def warnings_of(config: Config) -> list[str]:
    """What can work but hardly will as meant, a line each."""
    lines = []
    steps, every = config.run.max_steps, config.diloco.inner_steps
    if config.run.role is not Role.single and steps is not None and steps < every:
        lines.append(
            f"run.max_steps={steps} is below diloco.inner_steps={every}: "
            "each node sends one delta, at its end"
        )
    diloco = config.diloco
    if diloco.codec != "fp32" and diloco.install != "rebase":
        lines.append(
            f"diloco.install={diloco.install} drops the error of diloco.codec={diloco.codec} at "
            "each installation; with rebase it goes out with a later delta"
        )
    return lines + prospects(config) + over_budget(config)


def _check_run_name(config: Config) -> None:
    for setting in ("name", "run_id"):
        value = getattr(config.run, setting)
        if value is not None and not is_node_id(value):
            raise ConfigError(
                f"run.{setting}", value, "expected letters, digits, '.', '_' and '-' only"
            )


def _check_role(config: Config) -> None:
    if config.run.role is Role.single and config.cluster.nodes != 1:
        raise ConfigError(
            "cluster.nodes", config.cluster.nodes, "expected cluster.nodes=1 with run.role=single"
        )
    role = config.run.role
    if role in (Role.worker, Role.standby) and config.hub.repo_id is None:
        raise ConfigError(
            "hub.repo_id", None, f"expected the repository of the run that the {role.value} joins"
        )
    if role is Role.standby and config.diloco.lease_seconds is None:
        raise ConfigError(
            "diloco.lease_seconds", None, "expected seconds, as the master has them, for a standby"
        )


def _check_hub(config: Config) -> None:
    hub, role = config.hub, config.run.role
    if config.run.resumes and hub.kind is HubKind.memory and role is not Role.single:
        raise ConfigError("run.resume", config.run.resume, "not with hub=memory: it kept nothing")
    if role is Role.single:
        return
    if hub.kind is HubKind.memory and config.engine.name is EngineName.ray:
        raise ConfigError(
            "hub.kind", "memory", "not with engine=ray: actors share no memory; add engine=inproc"
        )
    joins = role in (Role.worker, Role.standby)
    if hub.kind is HubKind.embedded and joins and hub.endpoint is None:
        raise ConfigError("hub.endpoint", None, "expected the address of the hub to join")
    if hub.repo_id is not None and hub.repo_id.count("/") > 1:
        raise ConfigError("hub.repo_id", hub.repo_id, "expected owner/name")


def _check_targets(config: Config) -> None:
    for group, settings, given in (
        ("model", config.model, ["torch.nn"]),
        ("data", config.data, []),
        ("inner", config.inner, ["torch.optim"]),
    ):
        if settings.name == "custom":
            allowed = [*given, *settings.allow_targets]
            find_target(f"{group}.custom._target_", settings.custom["_target_"], allowed)


def _check_data(config: Config) -> str:
    corpus = build_data(config.data)
    check_vocabulary(config.model, vocabulary_of(corpus), data=config.data.name)
    if config.data.name != "custom":
        evaluation_batches(corpus, config.data)
    return corpus.manifest


def _check_memory(config: Config) -> None:
    """Only where the participants share this machine."""
    size = estimate_bytes(config.model)
    if size is None or config.ray.address is not None:
        return
    standby = config.run.role is Role.standby
    nodes = 0 if standby else len(config.cluster.run_here) or config.cluster.nodes
    master = standby or config.run.role is Role.master
    needed = size * (nodes * NODE_COPIES + master * MASTER_COPIES)
    available = psutil.virtual_memory().available
    if needed > available:
        raise ConfigError(
            "model.size",
            config.model.size,
            f"{nodes} nodes need about {needed / 2**30:.1f} GiB for copies of a model of "
            f"{size / 2**30:.2f} GiB, {available / 2**30:.1f} GiB are free; "
            "expected a smaller model or fewer cluster.nodes",
        )
