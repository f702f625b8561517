"""Everything that can be known to be wrong before any participant starts."""

from pathlib import Path

from ray_diloco.cluster.inner_schedule import inner_steps_of
from ray_diloco.errors import ConfigError, UsageError
from ray_diloco.experiment.absences import long_absences
from ray_diloco.experiment.alone import check_alone
from ray_diloco.experiment.build import state_folder
from ray_diloco.experiment.folders import require_writable
from ray_diloco.experiment.preflight import over_budget
from ray_diloco.experiment.prospects import prospects
from ray_diloco.experiment.room import check_batches, check_copies
from ray_diloco.experiment.schema import Config, EngineName, Role
from ray_diloco.experiment.without_effect import without_effect
from ray_diloco.hub.settings import HubKind
from ray_diloco.protocol.paths import is_node_id
from ray_diloco.protocol.rules import check_for_nodes, deltas_needed
from ray_diloco.tensors.fragments import split
from ray_diloco.tensors.schema import StateSchema
from ray_diloco.workload.data import (
    Corpus,
    build_data,
    evaluation_batches,
    training_stream,
    vocabulary_of,
)
from ray_diloco.workload.devices import resolve_device
from ray_diloco.workload.fitting import check_vocabulary, check_workload
from ray_diloco.workload.outline import outline, unfilled
from ray_diloco.workload.rehearsal import rehearse
from ray_diloco.workload.settings import ModelSettings
from ray_diloco.workload.targets import find_target


def check_config(config: Config) -> str:
    """ConfigError for the first setting that cannot be used; reads the data, and tries what is the
    user's own on one batch where the participants share this machine.

    Gives the data's manifest hash. ``config`` must be completed already.
    """
    config.run.check()
    config.diloco.check()
    config.cluster.check()
    config.checkpoint.check()
    config.ray.check()
    config.hub.check()
    config.security.check()
    config.tracking.check()
    _check_run_name(config)
    _check_role(config)
    check_alone(config)
    _check_rules(config)
    _check_hub(config)
    check_workload(config.model, config.data, config.inner)
    _check_weights(config)
    _check_targets(config)
    _check_model(config)
    _check_fragments(config)
    here = config.ray.address is None
    if here:
        resolve_device(config.run.device)
        check_copies(config)
        check_batches(config)
    corpus = _check_data(config)
    if here:
        _rehearse(config, corpus)
    return corpus.manifest


def check_folders(config: Config, run_dir: Path) -> None:
    """ConfigError when the run folder, or that of the states, cannot be written to."""
    require_writable("hydra.run.dir", run_dir)
    if config.diloco.state_dir and config.ray.address is None:
        require_writable("diloco.state_dir", state_folder(config, run_dir))


def warnings_of(config: Config) -> list[str]:
    """What can work but hardly will as meant, a line each."""
    lines = []
    steps, every = config.run.max_steps, config.diloco.inner_steps
    if config.run.role is not Role.single and steps is not None and steps < every:
        lines.append(
            f"run.max_steps={steps} is below diloco.inner_steps={every}: "
            "each node sends one delta, at its end"
        )
    lines += without_effect(config)
    diloco = config.diloco
    if diloco.codec != "fp32" and diloco.install != "rebase":
        lines.append(
            f"diloco.install={diloco.install} drops the error of diloco.codec={diloco.codec} at "
            "each installation; with rebase it goes out with a later delta"
        )
    return (
        lines + _too_few(config) + prospects(config) + long_absences(config) + over_budget(config)
    )


def _too_few(config: Config) -> list[str]:
    """Rounds that will hardly have the deltas that their aggregation needs."""
    diloco, needed = config.diloco, deltas_needed(config.diloco)
    expects = {"poll": 1, "quorum": diloco.min_deltas}.get(diloco.merge, needed)
    if config.run.role is Role.single or expects >= needed:
        return []
    return [
        f"diloco.aggregation={diloco.aggregation} needs {needed} deltas in a round, and with "
        f"diloco.merge={diloco.merge} fewer are merged, by their mean; quorum with "
        f"diloco.min_deltas={needed} waits for them"
    ]


def _check_rules(config: Config) -> None:
    """Outer rules that can never work here."""
    diloco, nodes, steps = config.diloco, config.cluster.nodes, config.run.max_steps
    if config.run.role is Role.single:
        return
    check_for_nodes(diloco, nodes)
    if diloco.weighting == "shard_size" and config.data.name == "hf":
        raise ConfigError(
            "diloco.weighting", "shard_size", "expected equal or tokens: a stream has no size"
        )
    arrivals = diloco.outer_arrivals or nodes
    if diloco.outer == "buffered" and steps is not None:
        every = inner_steps_of(diloco, config.cluster).values()
        most = sum(-(-steps // each) for each in every)
        if arrivals > most:
            raise ConfigError(
                "diloco.outer_arrivals",
                diloco.outer_arrivals,
                f"expected at most {most}, the deltas that {nodes} nodes send in "
                f"run.max_steps={steps} at diloco.inner_steps={diloco.inner_steps}",
            )


def _check_weights(config: Config) -> None:
    if config.model.weights is not None:
        from ray_diloco.workload.models import check_starting_weights  # torch, for these runs alone

        check_starting_weights(config.model)


def _check_run_name(config: Config) -> None:
    for setting in ("name", "run_id"):
        value = getattr(config.run, setting)
        if value is not None and not is_node_id(value):
            raise ConfigError(
                f"run.{setting}", value, "expected letters, digits, '.', '_' and '-' only"
            )


def _check_role(config: Config) -> None:
    if config.run.role is Role.single and config.cluster.nodes != 1:
        raise ConfigError("cluster.nodes", config.cluster.nodes, "expected 1 with run.role=single")
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


def _check_targets(config: Config) -> None:
    for group, settings, given in (
        ("model", config.model, ["torch.nn"]),
        ("data", config.data, []),
        ("inner", config.inner, ["torch.optim"]),
    ):
        if settings.name == "custom":
            allowed = [*given, *settings.allow_targets]
            find_target(f"{group}.custom._target_", settings.custom["_target_"], allowed)


def _check_model(config: Config) -> None:
    """What holds of the model's entries before they have values."""
    model, found = config.model, outline(config.model)
    if model.name == "custom":
        _check_storable(model)
    if not found.trainable:
        setting, value = "model.name", model.name
        if model.name == "custom":
            setting, value = "model.custom._target_", model.custom["_target_"]
        raise ConfigError(setting, value, "expected a model with parameters that take gradients")
    if config.diloco.compat and found.complex_entry and config.run.role is not Role.single:
        raise ConfigError(
            "diloco.compat",
            True,
            f"expected false for a model with complex entries ({found.complex_entry}): "
            "a plain peer drops the imaginary part",
        )


def _check_storable(model: ModelSettings) -> None:
    """What is the user's own may hold anything."""
    try:
        StateSchema.of(unfilled(model))
    except UsageError as error:
        raise ConfigError("model.custom._target_", model.custom["_target_"], str(error)) from None


def _check_fragments(config: Config) -> None:
    """A model with too few layers for them."""
    fragments = config.diloco.fragments
    if fragments > 1 and config.run.role is not Role.single:
        split(StateSchema.of_described(unfilled(config.model).state_dict()), fragments)


def _check_data(config: Config) -> Corpus:
    """Data to evaluate with, and some for each node."""
    data, nodes = config.data, config.cluster.nodes
    corpus = build_data(data)
    check_vocabulary(config.model, vocabulary_of(corpus), data=data.name)
    if data.name != "custom":
        evaluation_batches(corpus, data)
        training_stream(corpus, data, node_index=0, nodes=nodes, seed=config.run.seed)
    return corpus


def _rehearse(config: Config, corpus: Corpus) -> None:
    if config.data.name == "custom":
        evaluation_batches(corpus, config.data)
    rehearse(
        config.model,
        config.data,
        config.inner,
        corpus,
        nodes=config.cluster.nodes,
        seed=config.run.seed,
        device=resolve_device(config.run.device),
    )
