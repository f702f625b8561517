"""What cannot work is told in one line that names the setting, before anything starts."""

import sys

import pytest
from programs import SMALL

from ray_diloco.hub.embedded.server import EmbeddedHub
from ray_diloco.hub.entrance import enter
from ray_diloco.hub.secret import Secret
from ray_diloco.hub.settings import HubSettings

MEMORY = ("engine=inproc", "hub=memory")


@pytest.fixture
def refused(command, tmp_path):
    """The one line of a command that is refused; nothing was started and nothing is left."""

    def call(*words: str) -> str:
        code, out, err = command(*SMALL, *words, f"hydra.run.dir={tmp_path}/run")
        assert code == 2, err
        assert len(err.splitlines()) == 1
        assert "Traceback" not in out + err
        assert not (tmp_path / "run" / "events.jsonl").exists()
        assert "ray" not in sys.modules or not sys.modules["ray"].is_initialized()
        return err

    return call


@pytest.mark.parametrize(
    ("override", "setting"),
    [
        ("diloco.iner_steps=5", "diloco.inner_steps"),
        ("diloco.inner_steps=many", "diloco.inner_steps"),
        ("diloco.inner_steps=0", "diloco.inner_steps"),
        ("cluster.node_ids=[a,a]", "cluster.node_ids"),
        ("cluster.node_ids=[a,../b]", "cluster.node_ids"),
        ("run.device=tpu9", "run.device"),
        ("data.files=[/no/such/file]", "data.files"),
        ("model.width=1048576", "model"),
    ],
)
def test_a_setting_that_cannot_be_is_named(refused, override, setting):
    data = ("data=text",) if "data.files" in override else ()
    large = ("model=gpt", "model.layers=1000") if "model.width" in override else ()
    assert setting in refused(*MEMORY, *data, *large, override)


def test_memory_is_not_shared_by_actors(refused):
    assert "hub.kind" in refused("engine=ray", "hub=memory")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with a repository; its token is in the environment."""
    with EmbeddedHub(tmp_path / "hub", reader=Secret("hf_" + "r" * 20)) as hub:
        enter(HubSettings(), endpoint=hub.endpoint, token=hub.token, repo_id="here", make=True)
        monkeypatch.setenv("HF_TOKEN", hub.token.reveal())
        yield hub


def there(hub, repo: str) -> tuple[str, ...]:
    return ("engine=inproc", "time=wall", f"hub.endpoint={hub.endpoint}", f"hub.repo_id={repo}")


def test_a_repository_that_does_not_exist_is_named_to_a_worker(refused, hub):
    line = refused(*there(hub, "local/elsewhere"), "run.role=worker")
    assert "hub.repo_id" in line
    assert "local/elsewhere" in line


def test_a_wrong_token_is_told_and_not_shown(refused, hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_" + "w" * 20)
    line = refused(*there(hub, "local/here"))
    assert "HF_TOKEN" in line
    assert "www" not in line


def test_a_token_that_may_only_read_is_told(refused, hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_" + "r" * 20)
    line = refused(*there(hub, "local/here"))
    assert "write" in line


def test_a_repository_that_holds_another_run_is_refused(command, refused, hub, tmp_path):
    words = (*SMALL, *there(hub, "local/here"))
    code, _, err = command(*words, f"hydra.run.dir={tmp_path}/other")
    assert code == 0, err
    line = refused(*there(hub, "local/here"))
    assert "local/here" in line
    assert "run" in line
