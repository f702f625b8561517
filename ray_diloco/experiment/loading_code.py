"""How to load a trained model, as a model card says it: code that can be run as it stands."""

from dataclasses import fields
from importlib.metadata import version
from typing import Any

from ray_diloco.protocol.paths import MODEL_PATH
from ray_diloco.workload.settings import ModelSettings

_OF_PRETRAINED = """\
```python
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained(".")  # this folder
```"""
_FROM_THE_HUB = """\
from huggingface_hub import hf_hub_download
from ray_diloco.workload.models import build_model
from ray_diloco.workload.settings import ModelSettings

weights = hf_hub_download("{repo_id}", "{path}")
"""
_FROM_A_FOLDER = """\
from ray_diloco.workload.models import build_model
from ray_diloco.workload.settings import ModelSettings

weights = "model.safetensors"
"""
_BUILT = """\
settings = ModelSettings(
{arguments}
)
model = build_model(settings, seed=0).eval()  # {what}
"""
_TRANSFORMERS = (
    "It was trained with `transformers`: `ray-diloco-export <run folder> <target folder>` makes of "
    "the run a folder for `from_pretrained`."
)
_TENSORS = "The file is safetensors under the module's own names, for `load_state_dict`, too."
_WHAT = {
    "gpt": "token ids (batch, time) to logits (batch, time, vocabulary)",
    "mlp": "token ids (batch, time) to logits (batch, time, vocabulary)",
    "cnn": "images (batch, channels, height, width) to logits (batch, classes)",
    "perceptron": "images (batch, channels, height, width) to logits (batch, classes)",
    "hf": "a causal model of transformers",
}
_NOT_SHAPE = ("weights", "pretrained", "activation_checkpointing")
"""What a model starts from and how it is trained, which does not matter for what it has become."""


def loading_code(model: dict[str, Any], *, repo_id: str | None) -> str:
    """Prose and a block of Python that ends with the trained module as ``model``. ``model``: the
    group of a run's configuration. ``repo_id``: of the repository that holds the weights; None: the
    card is in a folder with them, which of transformers' models is one for ``from_pretrained``.
    """
    transformers = model.get("name") == "hf"
    if transformers and repo_id is None:
        return _OF_PRETRAINED
    needs = f"With `pip install ray-diloco=={version('ray-diloco')}`{_also(model)}:"
    head = _FROM_A_FOLDER if repo_id is None else _FROM_THE_HUB
    code = head.format(repo_id=repo_id, path=MODEL_PATH) + _BUILT.format(
        arguments=_arguments(model), what=_WHAT.get(str(model.get("name")), "the module")
    )
    parts = [*([_TRANSFORMERS] if transformers else []), needs, f"```python\n{code}```", _TENSORS]
    return "\n\n".join(parts)


def _also(model: dict[str, Any]) -> str:
    """What else has to be importable."""
    if model.get("name") == "hf":
        return " and `transformers`"
    target = str((model.get("custom") or {}).get("_target_", ""))
    return f" and the module `{target.rpartition('.')[0]}`" if target else ""


def _arguments(model: dict[str, Any]) -> str:
    """Those that are not the defaults, one on each line."""
    plain = ModelSettings()
    given = {
        each.name: model[each.name]
        for each in fields(ModelSettings)
        if each.name not in _NOT_SHAPE
        and each.name in model
        and (each.name == "name" or model[each.name] != getattr(plain, each.name))
    }
    lines = [f"    {name}={value!r}," for name, value in given.items()]
    return "\n".join([*lines, "    weights=weights,"])
