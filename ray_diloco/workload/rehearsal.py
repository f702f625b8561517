"""The user's own model, data and optimizer tried on one batch, before anything starts."""

from typing import Any

import torch
from torch import nn

from ray_diloco.errors import ConfigError
from ray_diloco.workload.custom_data import first_batch
from ray_diloco.workload.data import Corpus, training_stream
from ray_diloco.workload.lent_draws import LentDraws
from ray_diloco.workload.loss import batch_loss, move_batch
from ray_diloco.workload.models import build_model
from ray_diloco.workload.optimizers import build_optimizer
from ray_diloco.workload.seeds import derived_seed
from ray_diloco.workload.settings import DataSettings, InnerSettings, ModelSettings
from ray_diloco.workload.targets import first_line


def rehearse(
    model: ModelSettings,
    data: DataSettings,
    inner: InnerSettings,
    corpus: Corpus,
    *,
    nodes: int,
    seed: int,
    device: torch.device,
) -> None:
    """The loss of one batch, and the optimizer, where one of the three is the user's own; nothing
    else is tried. ConfigError for what does not work; torch's global generator is as before.
    """
    if "custom" not in (model.name, data.name, inner.name):
        return
    batch = _first_batch(data, corpus, nodes=nodes, seed=seed)
    built = build_model(model, seed=seed).to(device)
    _require_finite(built)
    if inner.name == "custom":
        _try_optimizer(built, inner)
    if "custom" not in (model.name, data.name):
        return
    with LentDraws(derived_seed(seed, "rehearsal"), device).lent():
        _try_loss(built, move_batch(batch, device), model, data)


def _require_finite(model: nn.Module) -> None:
    """No pseudo-gradient could be made of an infinite entry, even of one that never changes."""
    for name, value in model.state_dict().items():
        if (value.is_floating_point() or value.is_complex()) and not value.isfinite().all():
            expected = "expected finite values; make a buffer like a mask persistent=False"
            raise ConfigError("model.custom", name, expected)


def _first_batch(data: DataSettings, corpus: Corpus, *, nodes: int, seed: int) -> Any:
    if data.name == "custom":
        return first_batch(data, nodes=nodes, seed=seed)
    return next(iter(training_stream(corpus, data, node_index=0, nodes=nodes, seed=seed)))


def _try_optimizer(model: nn.Module, inner: InnerSettings) -> None:
    """One step, by gradients of zero."""
    try:
        optimizer = build_optimizer(model, inner)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            "inner.custom._target_", inner.custom["_target_"], f"raises {first_line(error)}"
        ) from error


def _try_loss(model: nn.Module, batch: Any, settings: ModelSettings, data: DataSettings) -> None:
    try:
        loss = batch_loss(model, batch)
    except Exception as error:
        raise _unfit(settings, data, f"cannot be trained: {first_line(error)}") from error
    if not (isinstance(loss, torch.Tensor) and loss.numel() == 1 and loss.requires_grad):
        told = type(loss).__name__
        if isinstance(loss, torch.Tensor):
            told = f"a tensor {tuple(loss.shape)}, requires_grad={loss.requires_grad}"
        raise _unfit(settings, data, f"expected one number with a gradient as the loss, got {told}")


def _unfit(model: ModelSettings, data: DataSettings, reason: str) -> ConfigError:
    """Of the two the one that is the user's own; of both the model, which is called."""
    if model.name == "custom":
        first = f"with the first batch of data={data.name}: {reason}"
        return ConfigError("model.custom._target_", model.custom["_target_"], first)
    first = f"with its first batch model={model.name} {reason}"
    return ConfigError("data.custom._target_", data.custom["_target_"], first)
