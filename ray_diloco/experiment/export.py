"""From a run folder to one that others can load."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray_diloco.errors import ConfigError, SafetensorsError, UsageError
from ray_diloco.experiment.model_card import card_of
from ray_diloco.experiment.reading import read_config
from ray_diloco.experiment.report.run_records import read_run
from ray_diloco.experiment.run_files import CONFIG, MODEL
from ray_diloco.experiment.schema import Config
from ray_diloco.hub.model_card import CARD
from ray_diloco.tensors.safetensors_reader import read_header
from ray_diloco.workload.extras import needed
from ray_diloco.workload.models import build_model


def export(run_dir: Path, target: Path) -> list[str]:
    """Write the final model to a new folder: with ``model=hf`` one for ``from_pretrained``, with
    the tokenizer that it was trained with; otherwise safetensors under the module's own names and
    the configuration. Both get the model card. Gives the files' names.

    ConfigError when the run left no model, or the folder holds something already; UsageError when
    one of the run's files is broken.
    """
    run = read_run(run_dir)
    weights = run_dir / MODEL
    if not weights.is_file():
        raise ConfigError("folder", str(run_dir), f"expected a run that has left {MODEL}")
    _require_whole(weights)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError("target", str(target), "expected a new or an empty folder")
    config = read_config(run.config)
    target.mkdir(parents=True, exist_ok=True)
    if config.model.name == "hf":
        _as_pretrained(config, weights, target)
    else:
        shutil.copyfile(weights, target / MODEL)
        shutil.copyfile(run_dir / CONFIG, target / CONFIG)
    (target / CARD).write_text(card_of(run), encoding="utf-8")
    return sorted(path.name for path in target.iterdir())


def _require_whole(weights: Path) -> None:
    try:
        read_header(weights)
    except (OSError, SafetensorsError) as error:
        raise UsageError(f"{weights}: {error}; expected the final model of a run") from None


def _as_pretrained(config: Config, weights: Path, target: Path) -> None:
    settings = replace(config.model, pretrained=False, weights=str(weights.absolute()))
    model: Any = build_model(settings, seed=config.run.seed).eval()
    model.config.use_cache = True
    model.save_pretrained(target)
    name = config.data.tokenizer if config.data.name == "hf" else None
    if name is None:
        return
    if name.endswith(".json"):
        shutil.copyfile(name, target / "tokenizer.json")
        return
    transformers = needed("transformers", "data.tokenizer", name, extra="hf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    tokenizer.save_pretrained(target)
