"""Whether model, data and inner optimizer fit together."""

from ray_diloco.errors import ConfigError
from ray_diloco.workload.settings import BYTES, DataSettings, InnerSettings, ModelSettings

IMAGE_MODELS = ("cnn", "perceptron")
BYTE_DATA = ("stdlib", "shakespeare", "text", "synthetic")


def check_workload(model: ModelSettings, data: DataSettings, inner: InnerSettings) -> None:
    """Each group alone, then together; ConfigError for the first setting that cannot be used."""
    for settings in (model, data, inner):
        settings.check()
    if model.name == "gpt" and data.sequence_length > model.context:
        raise ConfigError(
            "data.sequence_length",
            data.sequence_length,
            f"expected at most model.context ({model.context})",
        )
    _check_kinds(model, data)
    if data.name in BYTE_DATA:
        check_vocabulary(model, BYTES, data=data.name)


def _check_kinds(model: ModelSettings, data: DataSettings) -> None:
    """Models of images go with images, models of text with text; the user's own with anything."""
    if "custom" in (model.name, data.name):
        return
    if (model.name in IMAGE_MODELS) != (data.name == "digits"):
        fitting = IMAGE_MODELS if data.name == "digits" else ("gpt", "mlp", "hf")
        raise ConfigError(
            "model.name", model.name, f"expected {' or '.join(fitting)} with data={data.name}"
        )


def check_vocabulary(model: ModelSettings, vocabulary: int | None, *, data: str) -> None:
    """ConfigError when a built-in model has no room for all token ids; ``vocabulary`` None: there
    are none, or they are not known.
    """
    if model.name in ("gpt", "mlp") and vocabulary is not None and model.vocabulary < vocabulary:
        raise ConfigError(
            "model.vocabulary",
            model.vocabulary,
            f"expected at least {vocabulary}, the token ids of data={data}",
        )
