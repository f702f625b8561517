"""From a plan to a node, in the process that will run it."""

from dataclasses import dataclass

from ray_diloco.errors import ConfigError
from ray_diloco.hub.connect import connect
from ray_diloco.hub.limits import policy_of
from ray_diloco.hub.memory import MemoryStore
from ray_diloco.hub.patience import Retry
from ray_diloco.node.account import Origin
from ray_diloco.node.checkpoint import CheckpointShelf, Keeping
from ray_diloco.node.exchange import Exchange
from ray_diloco.node.node import Node
from ray_diloco.node.plan import NodePlan
from ray_diloco.node.silence import silent_by_lot
from ray_diloco.node.single import SingleNode
from ray_diloco.node.trainer import Trainer
from ray_diloco.node.weights import Weights
from ray_diloco.protocol.clock import Port
from ray_diloco.protocol.run import Recorder
from ray_diloco.protocol.seeds import seed_of, seeded
from ray_diloco.tensors.schema import StateSchema
from ray_diloco.workload.data import Corpus, build_data, evaluation_batches, training_stream
from ray_diloco.workload.devices import resolve_device
from ray_diloco.workload.models import build_model


def build_trainer(plan: NodePlan, corpus: Corpus) -> Trainer:
    """The node's model with the run's initial weights, and its shard of the data."""
    stream = training_stream(
        corpus, plan.data, node_index=plan.index, nodes=plan.nodes, seed=plan.run.seed
    )
    return Trainer(
        build_model(plan.model, seed=plan.run.seed),
        stream,
        plan.inner,
        device=resolve_device(plan.device),
        seed=seed_of(plan.run.seed, plan.node_id, "forward") >> 1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The slow part of building a node, done before the run's time starts."""

    corpus: Corpus
    trainer: Trainer


def prepare_node(plan: NodePlan) -> Prepared:
    """Read the data, draw the model. ConfigError when the settings do not fit this machine."""
    corpus = build_data(plan.data)
    plan.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    return Prepared(corpus=corpus, trainer=build_trainer(plan, corpus))


def build_node(
    plan: NodePlan,
    prepared: Prepared,
    *,
    nonce: str,
    port: Port,
    record: Recorder,
    store: MemoryStore | None = None,
) -> Node | SingleNode:
    """``store``: what the participants of one process share with `hub=memory`."""
    corpus, trainer = prepared.corpus, prepared.trainer
    origin = Origin(node_id=plan.node_id, nonce=nonce, manifest=corpus.manifest)
    if plan.role == "single":
        return SingleNode(
            origin=origin,
            window=plan.diloco.inner_steps,
            limits=plan.limits,
            trainer=trainer,
            eval_batches=evaluation_batches(corpus, plan.data),
            port=port,
            record=record,
            state_dir=plan.state_dir,
        )
    repository = connect(
        plan.hub, repo_id=plan.repo_id, endpoint=plan.endpoint, token=plan.token, store=store
    )
    weights = Weights(
        trainer.model,
        codec=plan.diloco.codec,
        codec_decay=plan.diloco.codec_decay,
        mismatch=plan.diloco.install_mismatch,
        fragments=plan.diloco.fragments,
        alpha=plan.diloco.fragment_mix,
        delta_factor=1.0 if plan.profile is None else plan.profile.delta_factor,
    )
    if plan.diloco.compat:
        _refuse_complex(weights.schema)
    exchange = Exchange(
        node_id=plan.node_id,
        nonce=nonce,
        run_id=plan.run.run_id,
        inner_steps=plan.diloco.inner_steps,
        repository=repository,
        weights=weights,
        retry=Retry(
            policy_of(plan.hub),
            seeded(plan.run.seed, plan.node_id, "retry"),
            port,
            who=plan.node_id,
        ),
        clock=port,
        state_dir=plan.state_dir,
        node_timeout=plan.diloco.node_timeout,
        commits_per_hour=plan.hub.budget,
        signer=plan.security.signer(),
        trust=plan.security.trust(),
        shard_tokens=_told_size(plan, trainer),
    )
    return Node(
        origin=origin,
        settings=plan.diloco,
        limits=plan.limits,
        trainer=trainer,
        weights=weights,
        exchange=exchange,
        repository=repository,
        port=port,
        record=record,
        takeover=plan.takeover,
        keeping=keeping_of(plan, schema=weights.schema.fingerprint),
        resume=plan.resume,
        reopens=plan.reopens,
        silent=silent_by_lot(
            0.0 if plan.profile is None else plan.profile.silent_share,
            run_seed=plan.run.seed,
            node_id=plan.node_id,
        ),
    )


def keeping_of(plan: NodePlan, *, schema: str) -> Keeping:
    """What the node keeps, and on resume what it finds. ConfigError when that is of another
    model.
    """
    settings = plan.checkpoint
    if not settings.keep_last:
        return Keeping()
    shelf = CheckpointShelf(plan.state_dir / "checkpoints", keep=settings.keep_last)
    kept = None
    if plan.resume:
        kept = shelf.newest(node_id=plan.node_id, run_id=plan.run.run_id)
    if kept is not None and kept.facts.schema != schema:
        raise ConfigError("run.resume", str(kept.folder), "expected the model that it was made of")
    return Keeping(shelf=shelf, every_steps=settings.every_steps, kept=kept)


def _told_size(plan: NodePlan, trainer: Trainer) -> int | None:
    """What deltas say of the size of the node's data, where weights ask for it."""
    if plan.diloco.weighting != "shard_size":
        return None
    if trainer.shard_tokens is None:
        raise ConfigError(
            "diloco.weighting",
            plan.diloco.weighting,
            "expected equal or tokens: the data do not tell the size of a shard (shard_tokens)",
        )
    return trainer.shard_tokens


def _refuse_complex(schema: StateSchema) -> None:
    for entry in schema.floating:
        if entry.dtype.is_complex:
            raise ConfigError(
                "diloco.compat",
                True,
                f"expected false for a model with complex entries ({entry.name}): "
                "a plain peer drops the imaginary part",
            )
