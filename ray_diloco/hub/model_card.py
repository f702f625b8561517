"""The model card: README.md of the repository, with a header that the Hub can read."""

from dataclasses import dataclass

from huggingface_hub import EvalResult, ModelCardData

from ray_diloco.hub.repository import Addition, Repository

CARD = "README.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardHeader:
    """What the Hub lists a model by. ``library``: that loads it; None: none does. ``eval_loss``:
    held-out, in ``unit``, on ``dataset``; None when it is not known. ``task``: that the loss is of,
    by its name on the Hub. ``base_model``: what it started from, by its name on the Hub.
    """

    name: str
    dataset: str
    task: str
    unit: str
    tags: tuple[str, ...] = ("diloco", "ray-diloco")
    library: str | None = None
    eval_loss: float | None = None
    base_model: str | None = None


def with_header(body: str, header: CardHeader) -> str:
    """The whole card."""
    data = ModelCardData(
        model_name=header.name,
        tags=list(header.tags),
        library_name=header.library,
        base_model=header.base_model,
        eval_results=_results(header),
    )
    return f"---\n{data.to_yaml()}\n---\n\n{body}"


def publish_card(repository: Repository, text: str) -> str:
    """One commit that adds or replaces the card, and gives it. HubError, as `Repository.commit`."""
    return repository.commit("Model card", additions=[Addition(path=CARD, source=text.encode())])


def _results(header: CardHeader) -> list[EvalResult] | None:
    if header.eval_loss is None:
        return None
    return [
        EvalResult(
            task_type=header.task,
            dataset_type=header.dataset,
            dataset_name=header.dataset,
            metric_type="loss",
            metric_name=f"held-out loss ({header.unit})",
            metric_value=round(header.eval_loss, 6),
        )
    ]
