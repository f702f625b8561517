"""From a batch and a model to a mean loss, whatever the form of either.

| batch | the model is called with | targets |
|---|---|---|
| int tensor (batch, time + 1) | all but the last token | all but the first |
| other tensor; tuple of one or over two | it; its elements | none: the model must return its loss |
| tuple (inputs, targets) | inputs; targets as well if ``forward`` asks for them | the second |
| mapping | ``**batch``, only what ``forward`` takes | ``labels`` or ``targets`` |

``forward`` asks for targets by a parameter ``targets``, ``target`` or ``y``, or by a second one
without a default. An optional ``labels`` is no such wish: models that have it shift it themselves.
A model may return a loss (a scalar), a mapping or object with ``loss``, a tuple with a scalar in
it, or logits: alone, as ``logits``, or first in a tuple. Logits are (..., classes) against integer
targets (...), -100 being ignored.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ray_diloco.errors import TrainingError

IGNORED = -100
"""A target that counts neither in the loss nor as a token."""

_TARGET_NAMES = ("targets", "labels", "target", "y")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """How the model is called for one batch."""

    args: tuple[Any, ...] = ()
    keywords: Mapping[str, Any]
    targets: torch.Tensor | None


def batch_loss(
    model: nn.Module, batch: Any, *, forward: Callable[..., Any] | None = None
) -> torch.Tensor:
    """Mean loss of one batch, a scalar with its graph. ``forward``: what to call instead of
    ``model`` (a compiled one).

    TrainingError when batch and output do not make a loss.
    """
    call = _call_for(model, batch)
    called = model if forward is None else forward
    output = called(*call.args, **call.keywords)
    loss = find_loss(output)
    return _cross_entropy(output, call.targets) if loss is None else loss


def count_tokens(batch: Any) -> int:
    """How many predictions a batch asks for: its targets without the ignored; without targets, its
    samples.
    """
    targets = _targets_of(batch)
    if targets is not None and not targets.is_floating_point():
        return int((targets != IGNORED).sum())
    first = _first_tensor(batch)
    return len(first) if first is not None and first.ndim else 1


def move_batch(batch: Any, device: torch.device) -> Any:
    """The same batch with its tensors on ``device``."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {name: move_batch(value, device) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(move_batch(value, device) for value in batch)
    return batch


def find_loss(output: Any) -> torch.Tensor | None:
    """The loss in a model's output; None when there are only logits."""
    if isinstance(output, Mapping):
        return output.get("loss")
    if isinstance(output, tuple | list):
        return next((value for value in output if _is_scalar(value)), None)
    if isinstance(output, torch.Tensor):
        return output if _is_scalar(output) else None
    return getattr(output, "loss", None)


def _call_for(model: nn.Module, batch: Any) -> Call:
    if isinstance(batch, Mapping):
        names = _parameters(model)
        takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in names.values())
        kept = {name: batch[name] for name in batch if takes_any or name in names}
        return Call(keywords=kept, targets=_targets_of(batch))
    if isinstance(batch, tuple | list):
        if len(batch) == 2:
            return _call_with_targets(model, batch[0], batch[1])
        return Call(args=tuple(batch), keywords={}, targets=None)
    if _is_token_batch(batch):
        return _call_with_targets(model, batch[:, :-1], batch[:, 1:])
    return Call(args=(batch,), keywords={}, targets=None)


def _call_with_targets(model: nn.Module, inputs: Any, targets: torch.Tensor) -> Call:
    parameters = _parameters(model)
    known = next((name for name in ("targets", "target", "y") if name in parameters), None)
    if known is not None:
        return Call(args=(inputs,), keywords={known: targets}, targets=targets)
    required = [
        one
        for one in parameters.values()
        if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    args = (inputs, targets) if len(required) == 2 else (inputs,)
    return Call(args=args, keywords={}, targets=targets)


def _parameters(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(model.forward).parameters


def _targets_of(batch: Any) -> torch.Tensor | None:
    if isinstance(batch, Mapping):
        return next((batch[name] for name in _TARGET_NAMES if name in batch), None)
    if isinstance(batch, tuple | list):
        return batch[1] if len(batch) == 2 else None
    return batch[:, 1:] if _is_token_batch(batch) else None


def _first_tensor(batch: Any) -> torch.Tensor | None:
    values = list(batch.values()) if isinstance(batch, Mapping) else batch
    values = values if isinstance(values, tuple | list) else [values]
    return next((value for value in values if isinstance(value, torch.Tensor)), None)


def _is_token_batch(batch: Any) -> bool:
    return isinstance(batch, torch.Tensor) and batch.ndim == 2 and not batch.is_floating_point()


def _is_scalar(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim == 0 and value.is_floating_point()


def _logits_in(output: Any) -> Any:
    if isinstance(output, Mapping):
        return output.get("logits")
    if isinstance(output, tuple | list):
        return output[0] if output else None
    return output if isinstance(output, torch.Tensor) else getattr(output, "logits", None)


def _cross_entropy(output: Any, targets: torch.Tensor | None) -> torch.Tensor:
    logits = _logits_in(output)
    if not isinstance(logits, torch.Tensor):
        raise TrainingError(
            f"the model returned {type(output).__name__} with neither a loss nor logits"
        )
    if targets is None or targets.is_floating_point() or logits.shape[:-1] != targets.shape:
        given = (
            "no targets" if targets is None else f"{targets.dtype} targets {tuple(targets.shape)}"
        )
        raise TrainingError(
            f"logits {tuple(logits.shape)} and {given} make no cross-entropy: expected integer "
            "targets of the logits' shape without the last dimension, or a model that returns its "
            "loss"
        )
    return functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]).float(), targets.reshape(-1), ignore_index=IGNORED
    )
