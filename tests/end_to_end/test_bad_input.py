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
        ("model.width=1048576", "model.width"),
        ("run.max_seconds=nan", "run.max_seconds"),
        ("run.max_steps=1.5", "run.max_steps"),
        ("run.max_steps='${nothing}'", "run.max_steps"),
        ("run.seed=1e3", "run.seed"),
        ("run.name=''", "run.name"),
        ("run.name=ü", "run.name"),
        ("run.threads_per_node=100000000000", "run.threads_per_node"),
        ("run.resume=/no/such", "run.resume"),
        ("run.resume=true", "run.resume"),
        ("run.role=mastr", "did you mean master?"),
        ("run=3", "run=3: expected a group of settings"),
        ("experiment=null", "'experiment=null': expected the name"),
        ("experiment=quickstrt", "did you mean quickstart?"),
        ("engine.name=inprc", "did you mean inproc?"),
        ("diloco.instal=rebase", "did you mean diloco.install?"),
        ("diloco.install=rebas", "did you mean rebase?"),
        ("diloco.poll_interval=1e-9", "diloco.poll_interval"),
        ("diloco.state_dir=/proc/none/such", "diloco.state_dir"),
        ("inner.weight_decay=inf", "inner.weight_decay"),
        ("cluster.nodes=1000000000", "cluster.nodes"),
        ("cluster.nodes=9", "cluster.nodes"),
        ("cluster.overrides.n0.upmbps=3", "did you mean up_mbps?"),
        ("cluster.overrides.n9.up_mbps=3", "cluster.overrides='n9'"),
        ("cluster.profiles=[{seconds_per_step: 1e300}]", "cluster.profiles[0].seconds_per_step"),
        ("cluster.profiles=[{away: [[5, x]]}]", "cluster.profiles[0].away"),
        ("hub.faults.resets=0.1", "did you mean reset?"),
        ("hub.faults.reset=often", "hub.faults.reset"),
        ("hub.port=99999", "hub.port"),
        ("ray.address=nonsense://x", "ray.address='nonsense://x': expected auto"),
        ("cluster.profiles=[{num_gpus: 1.5}]", "cluster.profiles[0].num_gpus"),
        ("cluster.profiles=[{label_selector: {a: '!'}}]", "cluster.profiles[0].label_selector"),
        ("hub.branch=a..b", "hub.branch"),
        ("hub.repo_id=a--b/c", "hub.repo_id"),
        ("hub.endpoint=hello", "hub.endpoint"),
        ("data.batch_size=1000000000000", "data.batch_size"),
    ],
)
def test_a_setting_that_cannot_be_is_named(refused, override, setting):
    data = ("data=text",) if "data.files" in override else ()
    large = ("model=gpt", "model.layers=1000") if "model.width" in override else ()
    assert setting in refused(*MEMORY, *data, *large, override)


def test_a_ray_that_nobody_serves_is_named(refused):
    line = refused("engine=ray", "ray.address=127.0.0.1:9")
    assert "ray.address='127.0.0.1:9': expected a Ray that answers" in line


@pytest.mark.parametrize("host", ["10.255.255.1", "no.such.host.invalid"])
def test_an_address_of_another_machine_is_named(refused, host):
    assert f"hub.host='{host}': expected an address of this machine" in refused(f"hub.host={host}")


def test_a_hub_that_does_not_answer_is_named(refused, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_" + "w" * 20)
    words = ("hub.endpoint=http://127.0.0.1:9", "hub.retry_deadline=0.2")
    assert "hub.endpoint='http://127.0.0.1:9': expected a hub that answers" in refused(*words)


def test_a_missing_token_is_for_the_hub_that_was_named(refused, monkeypatch, tmp_path):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    line = refused("hub.endpoint=http://127.0.0.1:9")
    assert "no token for http://127.0.0.1:9: set HF_TOKEN" in line
    words = ("hub=huggingface", "hub.repo_id=me/run", "engine=ray")  # before Ray is started
    assert "no token for https://huggingface.co: set HF_TOKEN" in refused(*words)


def test_several_values_without_a_sweep_are_told_about_it(refused):
    assert "several values need -m" in refused("diloco.outer_lr=0.3,0.7")


@pytest.mark.parametrize("place", ["/proc/none", "file", "file/below"])
def test_a_run_folder_that_cannot_be_is_named(command, tmp_path, place):
    (tmp_path / "file").touch()
    code, out, err = command(*SMALL, *MEMORY, f"hydra.run.dir={tmp_path / place}")
    assert (code, out) == (2, "")
    assert err.startswith(f"ray-diloco: hydra.run.dir='{tmp_path / place}': ")
    assert err.endswith("expected a folder that can be written to\n")


def test_single_training_needs_no_count_of_nodes(command, tmp_path):
    words = ("run.role=single", "run.max_steps=4", "run.report=false")
    code, _, err = command(*SMALL, *words, f"hydra.run.dir={tmp_path}/run")
    assert (code, err) == (0, "")


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
