"""The text of a model card, from a run folder: what was trained, how well, and how to load it."""

import logging
from collections.abc import Iterator
from pathlib import Path

from omegaconf import OmegaConf

from ray_diloco.cluster.hub_service import HubAccess
from ray_diloco.errors import RayDilocoError
from ray_diloco.experiment.loading_code import loading_code
from ray_diloco.experiment.report.curves import Point, eval_points
from ray_diloco.experiment.report.facts import facts_of, loss_text
from ray_diloco.experiment.report.run_records import RunRecords, read_run
from ray_diloco.experiment.schema import Config, Role
from ray_diloco.hub.connect import connect
from ray_diloco.hub.model_card import CardHeader, publish_card, with_header
from ray_diloco.hub.settings import HubKind

MOST_POINTS = 12
"""Of the curve, evenly over the run."""
logger = logging.getLogger(__name__)


def card_of(run: RunRecords, *, repo_id: str | None = None) -> str:
    """The whole card, header and body. ``repo_id``: of the run's repository; None for the card of a
    folder.
    """
    model, points = run.config.get("model", {}), eval_points(run)
    transformers = model.get("name") == "hf"
    header = CardHeader(
        name=run.title,
        dataset=_dataset(run),
        task=_task(run)[0],
        unit=_task(run)[1],
        library="transformers" if transformers else None,
        eval_loss=points[-1].loss if points else None,
        base_model=model.get("source") if transformers and model.get("pretrained") else None,
    )
    parts = [
        f"# {run.title}",
        _what(run),
        "## Numbers",
        _table([("what", "how much"), *facts_of(run)]),
        *_curve(points, _task(run)[1]),
        "## How to load it",
        loading_code(model, repo_id=repo_id),
        "## Configuration",
        f"```yaml\n{OmegaConf.to_yaml(OmegaConf.create(run.config))}```",
    ]
    return with_header("\n\n".join(parts) + "\n", header)


def publish_card_if_possible(config: Config, access: HubAccess, run_dir: Path) -> str | None:
    """At the end of a run that led an exchange on a shared hub. What to tell the user; None when
    there is nothing to do. A run never fails by its card.
    """
    shared = config.hub.kind is HubKind.huggingface and config.run.role is Role.master
    if not (config.hub.model_card and shared):
        return None
    try:
        repository = connect(
            config.hub, repo_id=access.repo_id, endpoint=access.endpoint, token=access.token
        )
        publish_card(repository, card_of(read_run(run_dir), repo_id=access.repo_id))
    except (RayDilocoError, OSError) as error:
        logger.warning("no model card: %s", error)
        return f"warning: no model card was written: {error}"
    return f"model card written to {access.repo_id}"


def _what(run: RunRecords) -> str:
    nodes = len(run.result["nodes"]) if run.result is not None else 0
    diloco = run.config.get("diloco", {})
    return (
        f"Trained by {nodes} nodes with asynchronous DiLoCo "
        "([2401.09135](https://arxiv.org/abs/2401.09135)): each node trains alone for "
        f"{diloco.get('inner_steps')} steps and sends what it learned to this repository, where a "
        "master averages what has arrived and takes an outer step "
        f"(learning rate {diloco.get('outer_lr')}, momentum {diloco.get('outer_momentum')}). "
        "Nothing else connected the nodes."
    )


def _dataset(run: RunRecords) -> str:
    data = run.config.get("data", {})
    return data.get("dataset") or data.get("name") or "unknown"


def _task(run: RunRecords) -> tuple[str, str]:
    """What the losses are of, and their unit: what data of the user's own means is not known."""
    match run.config.get("data", {}).get("name"):
        case "custom":
            return "other", "as the model gives it"
        case "digits":
            return "image-classification", "nats per image"
        case _:
            return "text-generation", "nats per token"


def _curve(points: list[Point], unit: str) -> Iterator[str]:
    if not points:
        return
    wanted = min(MOST_POINTS, len(points))
    chosen = sorted({round(at * (len(points) - 1) / max(wanted - 1, 1)) for at in range(wanted)})
    rows = [
        (str(points[at].outer_step), f"{points[at].tokens:,}", loss_text(points[at].loss))
        for at in chosen
    ]
    yield "## Held-out loss"
    yield _table([("outer step", "tokens merged", unit), *rows])


def _table(rows: list[tuple[str, ...]]) -> str:
    """The first row is the heading."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
