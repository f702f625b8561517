"""Any causal language model of ``transformers``: from a configuration alone, or pretrained."""

from typing import Any

from torch import nn

from ray_diloco.errors import ConfigError
from ray_diloco.workload.extras import needed
from ray_diloco.workload.settings import ModelSettings


def hf_model(settings: ModelSettings) -> nn.Module:
    """The model; its layers draw from torch's global generator, which the caller lends.

    Gradients take the place of cached keys and values. ConfigError for what the package refuses.
    """
    transformers = needed("transformers", "model.name", "hf", extra="hf")
    config = _configuration(transformers, settings)
    automatic = transformers.AutoModelForCausalLM
    try:
        if settings.pretrained:
            model = automatic.from_pretrained(
                settings.source, config=config, trust_remote_code=False
            )
        else:
            model = automatic.from_config(config, trust_remote_code=False)
    except (ValueError, OSError) as error:
        raise _refused(settings, error) from error
    if settings.activation_checkpointing:
        model.gradient_checkpointing_enable()
    return model


def hf_shape(settings: ModelSettings) -> nn.Module:
    """The same model without pretrained values, to be sized on the meta device."""
    transformers = needed("transformers", "model.name", "hf", extra="hf")
    config = _configuration(transformers, settings)
    return transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)


def _configuration(transformers: Any, settings: ModelSettings) -> Any:
    fields = {"use_cache": False} | settings.config
    try:
        if settings.source is not None:
            return transformers.AutoConfig.from_pretrained(
                settings.source, trust_remote_code=False, **fields
            )
        return transformers.AutoConfig.for_model(**fields)
    except (ValueError, OSError, TypeError) as error:
        raise _refused(settings, error) from error


def _refused(settings: ModelSettings, error: Exception) -> ConfigError:
    setting = "config" if settings.source is None else "source"
    reason = str(error).strip().splitlines()[0][:200]
    return ConfigError(f"model.{setting}", getattr(settings, setting), reason)
