"""Whether the memory of this machine has room for what its participants hold."""

from dataclasses import replace
from typing import Any

import psutil

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.schema import Config, Role
from ray_diloco.workload.outline import estimate_bytes
from ray_diloco.workload.settings import ModelSettings

NODE_COPIES = 6
"""Of the weights in a training node: themselves, gradients, AdamW's two, baseline, snapshot."""
MASTER_COPIES = 5
"""In the master: global, float32 copy, momentum, sum of the deltas, evaluation."""
LOGIT, TOKEN = 4, 8
"""Bytes of one number of either."""
GIB = 2**30

_PARTS = ("layers", "width", "hidden", "heads", "kv_heads", "vocabulary", "window")
_IMAGE_PARTS = ("channels", "image_size", "classes")


def check_batches(config: Config) -> None:
    """ConfigError when one batch of tokens, or those to evaluate with, cannot be held."""
    data, model = config.data, config.model
    if data.name in ("digits", "custom"):
        return
    logits = LOGIT * model.vocabulary if model.name in ("gpt", "mlp") else 0
    each = data.sequence_length * (TOKEN + logits)
    held_out = data.eval_batches * data.sequence_length * TOKEN
    available = psutil.virtual_memory().available
    for name, needed in (
        ("batch_size", data.batch_size * each),
        ("eval_batch_size", data.eval_batch_size * max(each, held_out)),
    ):
        if needed > available:
            larger = max(name, "sequence_length", key=lambda each: getattr(data, each))
            raise ConfigError(
                f"data.{larger}",
                getattr(data, larger),
                f"batches of data.{name}={getattr(data, name)} sequences of data.sequence_length="
                f"{data.sequence_length} need about {needed / GIB:.3g} GiB, "
                f"{available / GIB:.1f} GiB are free; expected fewer or shorter sequences",
            )


def check_copies(config: Config) -> None:
    """ConfigError when all copies of the model cannot be held; names what makes it large."""
    size, (nodes, masters) = estimate_bytes(config.model), _participants(config)
    needed = size * (nodes * NODE_COPIES + masters * MASTER_COPIES)
    available = psutil.virtual_memory().available
    if needed <= available:
        return
    told = (
        f"{nodes} nodes need about {needed / GIB:.1f} GiB for copies of a model of "
        f"{size / GIB:.2f} GiB, {available / GIB:.1f} GiB are free"
    )
    most = (available // size - masters * MASTER_COPIES) // NODE_COPIES
    if most >= 1:
        raise ConfigError("cluster.nodes", nodes, f"{told}; expected at most {most}")
    setting, value = _largest_part(config.model, size)
    raise ConfigError(setting, value, f"{told}; expected a smaller model")


def _participants(config: Config) -> tuple[int, int]:
    """How many nodes and masters run on this machine."""
    standby = config.run.role is Role.standby
    nodes = 0 if standby else len(config.cluster.run_here) or config.cluster.nodes
    return nodes, int(standby or config.run.role is Role.master)


def _largest_part(model: ModelSettings, size: int) -> tuple[str, Any]:
    """The setting without which the model would be smallest."""
    match model.name:
        case "custom":
            return "model.custom", model.custom
        case "hf":
            name = "config" if model.source is None else "source"
            return f"model.{name}", getattr(model, name)
        case _:
            sizes = {name: _size_without(model, name) for name in (*_PARTS, *_IMAGE_PARTS)}
            smallest = min(sizes, key=lambda name: sizes[name] or size)
            if (sizes[smallest] or size) < size:
                return f"model.{smallest}", getattr(model, smallest)
            return "model.size", model.size


def _size_without(model: ModelSettings, name: str) -> int | None:
    """Bytes of the model with this setting's default; None when that fits no other setting."""
    try:
        return estimate_bytes(replace(model, **{name: getattr(ModelSettings(), name)}))
    except ConfigError:
        return None
