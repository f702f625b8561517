"""From the settings to a model whose weights every node draws alike."""

import torch
from torch import nn

from ray_diloco.errors import ConfigError
from ray_diloco.workload.gpt import Gpt, gpt_shape
from ray_diloco.workload.hf_model import hf_model, hf_shape
from ray_diloco.workload.images import Cnn, Perceptron, cnn_from, perceptron_from
from ray_diloco.workload.lent_draws import LentDraws
from ray_diloco.workload.mlp import Mlp, mlp_from
from ray_diloco.workload.seeds import derived_seed, generator_for
from ray_diloco.workload.settings import ModelSettings
from ray_diloco.workload.targets import call_target


def build_model(settings: ModelSettings, *, seed: int) -> nn.Module:
    """The model on the CPU, in training mode; the same weights for the same seed, and torch's
    global generator as before.

    ConfigError when the settings do not fit together or ``custom`` is no nn.Module.
    """
    match settings.name:
        case "custom":
            model = _draw_custom(settings, seed)
        case "hf":
            with LentDraws(derived_seed(seed, "model"), torch.device("cpu")).lent():
                model = hf_model(settings).train()
        case _:
            model = _own_model(settings)
            model.draw_weights(generator_for(seed, "model"))
    return _stored_in(model, getattr(torch, settings.dtype))


def _stored_in(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Real numbers in this dtype; complex ones and integers stay what they are."""
    return model._apply(lambda each: each.to(dtype) if each.is_floating_point() else each)


def estimate_bytes(settings: ModelSettings) -> int | None:
    """Bytes of one copy of the model's ``state_dict``, without memory for it; None when ``custom``
    cannot tell so.

    A training node holds at least four: weights, gradients and AdamW's two, beside the exchange's
    own copies.
    """
    try:
        with torch.device("meta"):
            model = _unfilled(settings)
    except ConfigError:
        raise
    except Exception:  # the user's constructor may read values, which the meta device has not
        return None
    return sum(
        value.numel() * value.element_size()
        for value in model.to(getattr(torch, settings.dtype)).state_dict().values()
        if isinstance(value, torch.Tensor)
    )


def _unfilled(settings: ModelSettings) -> nn.Module:
    match settings.name:
        case "custom":
            return _call_custom(settings)
        case "hf":
            return hf_shape(settings)
        case _:
            return _own_model(settings)


def _own_model(settings: ModelSettings) -> Gpt | Mlp | Cnn | Perceptron:
    match settings.name:
        case "mlp":
            return mlp_from(settings)
        case "cnn":
            return cnn_from(settings)
        case "perceptron":
            return perceptron_from(settings)
        case _:
            return Gpt(
                gpt_shape(settings), activation_checkpointing=settings.activation_checkpointing
            )


def _draw_custom(settings: ModelSettings, seed: int) -> nn.Module:
    with LentDraws(derived_seed(seed, "model"), torch.device("cpu")).lent():
        model = _call_custom(settings)
    if settings.activation_checkpointing:
        _checkpoint_activations(model, settings)
    return model


def _call_custom(settings: ModelSettings) -> nn.Module:
    model = call_target("model.custom", settings.custom, ["torch.nn", *settings.allow_targets])
    if not isinstance(model, nn.Module):
        raise ConfigError(
            "model.custom._target_", settings.custom["_target_"], "expected to give an nn.Module"
        )
    return model


def _checkpoint_activations(model: nn.Module, settings: ModelSettings) -> None:
    enable = getattr(model, "gradient_checkpointing_enable", None)
    if enable is None:
        raise ConfigError(
            "model.activation_checkpointing",
            True,
            f"{settings.custom['_target_']} has no gradient_checkpointing_enable()",
        )
    enable()
