"""From a plan to a master, in the process that will run it."""

from dataclasses import dataclass
from functools import partial

from ray_diloco.hub.connect import connect
from ray_diloco.hub.limits import policy_of
from ray_diloco.hub.memory import MemoryStore
from ray_diloco.hub.patience import Retry
from ray_diloco.master.evaluator import Evaluator
from ray_diloco.master.master import Master
from ray_diloco.master.plan import MasterPlan
from ray_diloco.protocol.clock import Port
from ray_diloco.protocol.run import Recorder
from ray_diloco.protocol.seeds import seeded
from ray_diloco.tensors.dtypes import State
from ray_diloco.tensors.schema import StateSchema
from ray_diloco.timing.virtual_port import VirtualPort
from ray_diloco.workload.data import build_data, evaluation_batches
from ray_diloco.workload.devices import resolve_device
from ray_diloco.workload.evaluation import evaluate
from ray_diloco.workload.models import build_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The slow part of building a master, done before the run's time starts."""

    initial: State
    schema: StateSchema
    evaluator: Evaluator | None


def prepare_master(plan: MasterPlan) -> Prepared:
    """Draw the model, read the held-out data."""
    model = build_model(plan.model, seed=plan.run.seed)
    plan.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    batches = evaluation_batches(build_data(plan.data), plan.data)
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    schema = StateSchema.of(model)
    on_device = model.to(resolve_device(plan.device))
    return Prepared(
        initial=initial,
        schema=schema,
        evaluator=Evaluator(on_device, partial(evaluate, batches=batches)) if batches else None,
    )


def build_master(
    plan: MasterPlan,
    prepared: Prepared,
    *,
    port: Port,
    record: Recorder,
    store: MemoryStore | None = None,
) -> Master:
    """``store``: what the participants of one process share with `hub=memory`."""
    repository = connect(
        plan.hub, repo_id=plan.repo_id, endpoint=plan.endpoint, token=plan.token, store=store
    )
    return Master(
        master_id=plan.master_id,
        run=plan.run,
        limits=plan.limits,
        settings=plan.diloco,
        expected=plan.expected,
        resume=plan.resume,
        began=port.utc() if isinstance(port, VirtualPort) else None,
        standby=plan.standby,
        squash_every=plan.hub.squash_every,
        work_seconds=plan.work_seconds,
        commits_per_hour=plan.hub.budget,
        signer=plan.security.signer(),
        trust=plan.security.trust(),
        initial=prepared.initial,
        schema=prepared.schema,
        evaluator=prepared.evaluator,
        repository=repository,
        retry=Retry(
            policy_of(plan.hub),
            seeded(plan.run.seed, plan.master_id, "retry"),
            port,
            who=f"master {plan.master_id}",
        ),
        port=port,
        record=record,
        state_dir=plan.state_dir,
    )
