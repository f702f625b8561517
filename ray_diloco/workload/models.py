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
from ray_diloco.workload.starting_weights import check_weights, load_weights
from ray_diloco.workload.targets import call_target, first_line


def build_model(settings: ModelSettings, *, seed: int) -> nn.Module:
    """The model on the CPU, in training mode; the same weights for the same seed, and torch's
    global generator as before. With ``weights`` those of the file.

    ConfigError when the settings, or the file, do not fit together, or ``custom`` is no nn.Module
    or raises.
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
    if settings.weights is not None:
        load_weights(settings.weights, model)
    return _stored(model, settings)


def check_starting_weights(settings: ModelSettings) -> None:
    """ConfigError when there is a file to start from that does not fit; draws nothing. What only
    the user's constructor knows is found out when the model is built.
    """
    if settings.weights is None or settings.name in ("custom", "hf"):
        return
    with torch.device("meta"):
        check_weights(settings.weights, _own_model(settings))


def _stored(model: nn.Module, settings: ModelSettings) -> nn.Module:
    """Real numbers in the dtype that is asked for; complex ones and integers stay what they are."""
    if settings.dtype is None and settings.name == "custom":
        return model
    dtype = getattr(torch, settings.dtype or "float32")
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)
    return model


def sized_model(settings: ModelSettings) -> nn.Module:
    """The model on the meta device, without memory for its values. ConfigError as above; whatever
    a constructor of the user's raises that needs values.
    """
    with torch.device("meta"):
        match settings.name:
            case "custom":
                model = _call_custom(settings)
            case "hf":
                model = hf_shape(settings)
            case _:
                model = _own_model(settings)
    return _stored(model, settings)


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
        try:
            model = _call_custom(settings)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                "model.custom._target_", settings.custom["_target_"], f"raises {first_line(error)}"
            ) from error
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
