"""Role single: its model before and after, evaluated as the master evaluates globals."""

from pathlib import Path

from safetensors.torch import load_file

from ray_diloco.experiment.result import Losses
from ray_diloco.experiment.schema import Config
from ray_diloco.node.plan import NodePlan
from ray_diloco.workload.data import build_data, evaluation_batches
from ray_diloco.workload.devices import resolve_device
from ray_diloco.workload.evaluation import evaluate
from ray_diloco.workload.models import build_model


def final_model(plan: NodePlan) -> Path:
    """Where a node of role single leaves its weights: the complete state_dict."""
    return plan.state_dir / "model.safetensors"


def evaluate_single(config: Config, plan: NodePlan) -> Losses:
    """The held-out losses of the first and the final model; no final one without its file."""
    device = resolve_device(config.run.device)
    batches = evaluation_batches(build_data(config.data), config.data)
    model = build_model(config.model, seed=plan.run.seed).to(device)
    initial = evaluate(model, batches)
    if not final_model(plan).exists():
        return Losses(initial=initial)
    model.load_state_dict(load_file(final_model(plan)))
    return Losses(initial=initial, final=evaluate(model, batches))
