"""The way into the hub, before anything runs."""

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ray_diloco.cluster.hub_service import open_hub
from ray_diloco.errors import ConfigError, PermanentHubError
from ray_diloco.hub.embedded.server import EmbeddedHub
from ray_diloco.hub.settings import HubSettings


def enter(settings: HubSettings, folder: Path) -> str:
    with open_hub(settings, run_id="r", leads=True, run_dir=folder, in_actor=False) as access:
        return access.repo_id


def test_a_storm_at_the_door_is_waited_out(tmp_path: Path) -> None:
    faults = {"errors": 0.05, "lost": 0.1, "reset": 0.1}
    for seed in range(3):
        settings = HubSettings(faults=faults, retry_first=0.01, retry_longest=0.05)
        with open_hub(
            settings,
            run_id="r",
            leads=True,
            run_dir=tmp_path / str(seed),
            in_actor=False,
            seed=seed,
        ) as access:
            assert access.repo_id == "local/r"


def test_a_wrong_token_costs_less_than_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with EmbeddedHub(tmp_path) as hub:
        begun = time.monotonic()
        with pytest.raises(PermanentHubError, match="HF_TOKEN") as caught:
            enter(HubSettings(endpoint=hub.endpoint), tmp_path)
        assert time.monotonic() - begun < 1.0
    assert "hf_wrong" not in str(caught.value)


def test_a_hub_that_is_not_there_ends_the_run_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_any")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    settings = HubSettings(endpoint=f"http://127.0.0.1:{port}", retry_deadline=0.3)
    with pytest.raises(ConfigError, match=r"that answers: .*ConnectError") as caught:
        enter(settings, tmp_path)
    assert (caught.value.setting, caught.value.value) == ("hub.endpoint", settings.endpoint)


def test_a_run_of_any_name_has_a_repository_that_the_hub_takes(tmp_path: Path) -> None:
    settings = HubSettings()
    with open_hub(
        settings, run_id="a..b--c-.d", leads=True, run_dir=tmp_path, in_actor=False
    ) as access:
        assert access.repo_id == "local/a.b-c-.d"


@pytest.mark.parametrize("actor", ["hub_actor", "clock_actor"])
def test_an_actor_that_holds_no_model_does_not_load_torch(actor):
    program = f"import sys; import ray_diloco.cluster.{actor}; print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert told.stdout == b"False\n"
