import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import HfApi, ModelCard
from safetensors.torch import load_file

import ray_diloco
from ray_diloco.cluster.hub_service import HubAccess
from ray_diloco.errors import ConfigError
from ray_diloco.experiment.export import export
from ray_diloco.experiment.export_main import main
from ray_diloco.experiment.model_card import card_of, publish_card_if_possible
from ray_diloco.experiment.report.run_records import read_run
from ray_diloco.experiment.result import Result
from ray_diloco.hub.connect import connect
from ray_diloco.hub.embedded.server import EmbeddedHub
from ray_diloco.hub.memory import MemoryRepository, MemoryStore
from ray_diloco.hub.model_card import publish_card
from ray_diloco.hub.repository import Addition
from ray_diloco.hub.settings import HubKind, HubSettings
from ray_diloco.protocol.paths import MODEL_PATH

SMALL = (
    *("debug=default", "data=synthetic", "data.synthetic_bytes=20000", "hub=memory"),
    *("run.max_steps=4", "diloco.inner_steps=2", "run.report=false"),
)
GPT2 = (
    "{model_type: gpt2, vocab_size: 256, n_positions: 256, n_embd: 16, n_layer: 1, n_head: 2, "
    "bos_token_id: 0, eos_token_id: 0}"
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return ray_diloco.run(SMALL, folder=tmp_path_factory.mktemp("runs") / "one")


def test_a_model_of_ours_is_exported_as_safetensors_with_configuration_and_card(
    finished, tmp_path, capsys
):
    main([str(finished.folder), str(tmp_path / "out")])
    assert "README.md, config.yaml, model.safetensors" in capsys.readouterr().out
    ours, theirs = (
        load_file(finished.folder / "model.safetensors"),
        load_file(tmp_path / "out" / "model.safetensors"),
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_folder_that_holds_something_is_refused(finished, tmp_path, capsys):
    (tmp_path / "mine").write_text("")
    with pytest.raises(SystemExit) as ended:
        main([str(finished.folder), str(tmp_path)])
    assert ended.value.code == 2
    assert "expected a new or an empty folder" in capsys.readouterr().err


def test_a_run_that_left_no_model_is_refused(finished, tmp_path):
    for name in ("config.yaml", "events.jsonl"):
        (tmp_path / name).write_bytes((finished.folder / name).read_bytes())
    with pytest.raises(ConfigError, match=r"has left model\.safetensors"):
        export(tmp_path, tmp_path / "out")


def test_a_card_has_a_header_that_the_hub_can_read_and_the_runs_numbers(finished):
    card = ModelCard(card_of(read_run(finished.folder)))
    assert card.data.model_name == finished.numbers["run_id"]
    assert "ray-diloco" in (card.data.tags or [])
    (told,) = card.data.eval_results or []
    assert told.metric_value == round(finished.eval_loss or 0, 6)
    assert f"{finished.eval_loss:.4f}" in card.text
    assert "inner_steps: 2" in card.text


@pytest.mark.parametrize(
    ("data", "task", "unit"),
    [
        ("stdlib", "text-generation", "nats per token"),
        ("digits", "image-classification", "nats per image"),
        ("custom", "other", "as the model gives it"),
    ],
)
def test_a_card_says_what_its_losses_are_of(finished, data, task, unit):
    run = read_run(finished.folder)
    known = replace(run, config=run.config | {"data": {"name": data}})
    card = ModelCard(card_of(known))
    (told,) = card.data.eval_results or []
    assert (told.task_type, told.metric_name) == (task, f"held-out loss ({unit})")
    assert f"| {unit} |" in card.text


def block_of(card: str) -> str:
    """The one block of Python that the text of a card has."""
    (code,) = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    return code


def run_block(card: str) -> dict[str, Any]:
    """Run it; gives its names."""
    names: dict[str, Any] = {}
    exec(block_of(card), names)
    return names


def assert_as_trained(names: dict[str, Any], folder: Path) -> None:
    trained, loaded = load_file(folder / "model.safetensors"), names["model"].state_dict()
    assert loaded.keys() == trained.keys()
    assert all(torch.equal(loaded[name], value) for name, value in trained.items())
    assert not names["model"].training


SHAPES = {
    "mlp": ["model=mlp", "model.width=16", "model.hidden=24", "model.window=3"],
    "gpt": ["model=gpt", "model.layers=1", "model.width=16", "model.heads=2", "model.hidden=24"],
    "custom": [
        "model=custom", "model.allow_targets=[own_model]",
        "model.custom={_target_: own_model.Bytes, width: 5}",
    ],
}  # fmt: skip


@pytest.fixture(scope="module", params=SHAPES)
def trained(request, tmp_path_factory) -> Result:
    """A run of each kind of model that is not of transformers."""
    small = [each for each in SMALL if not each.startswith("debug")]
    words = ["debug=default", *small, *SHAPES[request.param]]
    return ray_diloco.run(words, folder=tmp_path_factory.mktemp("trained") / "run")


def test_the_code_of_a_folders_card_gives_the_model_that_was_trained(
    trained, tmp_path, monkeypatch
):
    export(trained.folder, tmp_path / "out")
    monkeypatch.chdir(tmp_path / "out")
    assert_as_trained(run_block((tmp_path / "out" / "README.md").read_text()), trained.folder)


@pytest.mark.slow
def test_the_code_of_a_repositorys_card_gives_the_model_that_was_trained(trained, tmp_path):
    """By whoever may read the repository, in a process of their own."""
    with EmbeddedHub(tmp_path / "hub") as hub:
        api = HfApi(endpoint=hub.endpoint, token=hub.token.reveal())
        api.create_repo("me/run", private=True)
        settings = HubSettings(kind=HubKind.huggingface, endpoint=hub.endpoint)
        repository = connect(settings, repo_id="me/run", token=hub.token)
        source = (trained.folder / "model.safetensors").read_bytes()
        repository.commit("global", additions=[Addition(path=MODEL_PATH, source=source)])
        commit = publish_card(repository, card_of(read_run(trained.folder), repo_id="me/run"))
        card = repository.read("README.md", commit=commit, limit=100_000).decode()
        keeps = "from safetensors.torch import save_file\nsave_file(model.state_dict(), 'again')\n"
        ended = subprocess.run(
            [sys.executable, "-c", block_of(card) + keeps],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "HF_ENDPOINT": hub.endpoint,
                "HF_TOKEN": hub.token.reveal(),
                "HF_HOME": str(tmp_path / "home"),
            },
            capture_output=True,
            text=True,
        )
    assert ended.returncode == 0, ended.stderr
    ours, theirs = load_file(trained.folder / "model.safetensors"), load_file(tmp_path / "again")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_card_is_one_commit_to_the_repository(finished):
    repository = MemoryRepository("local/run", branch="main", store=MemoryStore())
    commit = publish_card(repository, card_of(read_run(finished.folder)))
    text = repository.read("README.md", commit=commit, limit=100_000).decode()
    assert text.startswith("---\n")


def test_a_card_that_cannot_be_published_is_a_warning(configure, finished):
    config = configure("hub=huggingface", "hub.endpoint=http://127.0.0.1:9", "hub.repo_id=me/run")
    told = publish_card_if_possible(config, HubAccess(repo_id="me/run"), finished.folder)
    assert told is not None
    assert told.startswith("warning: no model card was written")


@pytest.mark.parametrize("words", [[], ["hub=huggingface", "hub.model_card=false"]])
def test_a_run_of_its_own_hub_or_that_shall_not_publishes_no_card(configure, finished, words):
    access = HubAccess(repo_id="me/run")
    assert publish_card_if_possible(configure(*words), access, finished.folder) is None


@pytest.mark.skipif(find_spec("transformers") is None, reason="needs the extra hf; runs in .ci/run")
def test_a_model_of_transformers_is_exported_for_from_pretrained(tmp_path, monkeypatch):
    from transformers import AutoModelForCausalLM

    words = [each for each in SMALL if not each.startswith("debug")]
    result = ray_diloco.run(
        [*words, "experiment=quickstart", "engine=inproc", "model=hf", f"model.config={GPT2}",
         "inner.warmup_steps=1"],
        folder=tmp_path / "run",
    )  # fmt: skip
    export(result.folder, tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    trained = load_file(result.folder / "model.safetensors")
    loaded = model.state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in trained.items())
    monkeypatch.chdir(tmp_path / "out")
    again = run_block((tmp_path / "out" / "README.md").read_text())["model"].state_dict()
    assert all(torch.equal(again[name], value) for name, value in trained.items())
