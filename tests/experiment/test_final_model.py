"""The final model comes to the run folder from wherever the master was."""

from pathlib import Path

import pytest

from ray_diloco.cluster.engine import Ending
from ray_diloco.cluster.hub_service import HubAccess, enter_hub
from ray_diloco.experiment.final_model import fetch_if_elsewhere, model_here
from ray_diloco.hub.connect import connect
from ray_diloco.hub.digest import sha256_of
from ray_diloco.hub.embedded.server import EmbeddedHub
from ray_diloco.hub.repository import Addition
from ray_diloco.hub.settings import HubSettings
from ray_diloco.protocol.paths import MODEL_PATH
from ray_diloco.protocol.run import MasterReport, NodeReport

MODEL = b"weights"
QUICK = HubSettings(retry_deadline=0.2, retry_first=0.05)


@pytest.fixture
def access(tmp_path):
    """A hub that holds a global."""
    with EmbeddedHub(tmp_path / "hub") as hub:
        settings = HubSettings(endpoint=hub.endpoint)
        found = enter_hub(settings, repo_id="r", leads=True, token=hub.token)
        repository = connect(
            settings, repo_id=found.repo_id, endpoint=found.endpoint, token=found.token
        )
        repository.commit("global", additions=[Addition(path=MODEL_PATH, source=MODEL)])
        yield found


def led(model_file: Path | str, sha256: str = sha256_of(MODEL)) -> Ending:
    report = MasterReport(
        outer_steps=1, deltas_merged=1, accounts={}, staleness={}, rejected=[], evaluations=[],
        tokens_total=1, stop_reason="max_steps", model_file=str(model_file), model_sha256=sha256,
        bytes_up=0, bytes_down=0, requests=0, commits=0, conflicts=0,
    )  # fmt: skip
    return Ending(nodes=(), master=report, failures={})


def test_a_model_on_another_machine_is_fetched_from_the_hub(access, tmp_path):
    ending = led("/of/another/machine.safetensors")
    assert fetch_if_elsewhere(QUICK, access, ending, tmp_path) == []
    assert (tmp_path / "model.safetensors").read_bytes() == MODEL
    assert model_here(ending) is None


def test_a_model_on_this_machine_is_not_fetched(tmp_path):
    file = tmp_path / "global.safetensors"
    file.write_bytes(MODEL)
    nowhere = HubAccess(repo_id="local/r", endpoint="http://127.0.0.1:9")
    assert fetch_if_elsewhere(QUICK, nowhere, led(file), tmp_path) == []
    assert model_here(led(file)) == file


def test_another_model_than_the_masters_last_is_not_taken(access, tmp_path):
    (line,) = fetch_if_elsewhere(QUICK, access, led("/elsewhere", "0" * 64), tmp_path)
    assert "could not be fetched" in line
    assert not (tmp_path / "model.safetensors").exists()


def test_a_hub_that_has_gone_is_told(tmp_path):
    gone = HubAccess(repo_id="local/r", endpoint="http://127.0.0.1:9")
    (line,) = fetch_if_elsewhere(QUICK, gone, led("/elsewhere"), tmp_path)
    assert "it stays in local/r" in line


def test_who_trained_alone_elsewhere_is_told(tmp_path):
    report = NodeReport(
        node_id="n0", nonce="", local_steps=1, tokens=1, train_loss=None, stop_reason="max_steps",
        overflows=0, compute_seconds=1.0, total_seconds=1.0, manifest="", data_note=None,
        model_file="/elsewhere/model.safetensors",
    )  # fmt: skip
    ending = Ending(nodes=(report,), master=None, failures={})
    (line,) = fetch_if_elsewhere(QUICK, HubAccess(repo_id=""), ending, tmp_path)
    assert line == "the final model is on another machine, in /elsewhere/model.safetensors"


def test_a_standby_that_was_never_needed_has_no_model(tmp_path):
    nowhere = HubAccess(repo_id="")
    assert fetch_if_elsewhere(QUICK, nowhere, led(""), tmp_path) == []
    assert model_here(led("")) is None
