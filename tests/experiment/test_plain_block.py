import pytest

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.build import complete
from ray_diloco.experiment.checks import check_config
from ray_diloco.experiment.node_main import read_command
from ray_diloco.experiment.plain_block import read_plain_block, translate
from ray_diloco.experiment.schema import EngineName, Role
from ray_diloco.hub.settings import HubKind

BLOCK = """
run:
  seed: 5
distributed:
  enabled: true
  mode: dumb_diloco
  role: worker
  node_id: laptop
  collaborators: [alice]
  inner_steps: 50
  poll_interval: 5.0
  outer_lr: 0.5
  outer_momentum: 0.8
  repo_id: alice/run
  token: null
  cache_dir: .cache/hub
  state_dir: "state, of 'mine'"
  retry_initial: 2.0
  retry_max: 40.0
  retry_attempts: 3
  reset_inner_optimizer: false
  async_delta_upload: false
  delta_upload_queue_size: 1
  delta_upload_overflow: skip
  delta_upload_shutdown_timeout: 7.0
  async_global_poll: false
"""


@pytest.fixture
def node_yaml(tmp_path):
    path = tmp_path / "node.yaml"
    path.write_text(BLOCK)
    return path


def test_the_block_is_taken_as_it_is(node_yaml):
    config, run_dir, notes = read_command([f"distributed_yaml={node_yaml}", "run.max_steps=10"])
    diloco, hub = config.diloco, config.hub
    assert (config.run.role, config.run.max_steps, config.run.seed) == (Role.worker, 10, 0)
    assert (diloco.inner_steps, diloco.poll_interval) == (50, 5.0)
    assert (diloco.outer_lr, diloco.outer_momentum, diloco.stop_timeout) == (0.5, 0.8, 7.0)
    assert not diloco.reset_inner_optimizer
    assert not diloco.async_delta_upload
    assert not diloco.async_global_poll
    assert diloco.state_dir == "state, of 'mine'"
    assert (hub.repo_id, hub.kind) == ("alice/run", HubKind.huggingface)
    assert (hub.retry_first, hub.retry_longest) == (2.0, 40.0)
    assert config.engine.name is EngineName.inproc
    assert (config.cluster.node_ids, config.cluster.run_here) == (["laptop"], ["laptop"])
    assert run_dir.parts[-2] == "node-laptop"
    assert len(notes) == 6


def test_what_has_no_meaning_here_is_said_in_one_line_each(node_yaml):
    notes = read_plain_block(node_yaml).notes
    assert [note.split(":")[0] for note in notes] == [
        "run",
        "distributed.collaborators",
        "distributed.cache_dir",
        "distributed.retry_attempts",
        "distributed.delta_upload_queue_size",
        "distributed.delta_upload_overflow",
    ]
    assert all("\n" not in note for note in notes)


def test_the_command_line_wins_over_the_block(node_yaml):
    words = [f"distributed_yaml={node_yaml}", "diloco.inner_steps=9", "hub=embedded"]
    config, _, _ = read_command([*words, "cluster.node_ids=[desk,laptop]", "run_dir=here"])
    assert (config.diloco.inner_steps, config.hub.kind) == (9, HubKind.embedded)
    assert (config.cluster.nodes, config.cluster.run_here) == (2, ["laptop"])


def test_a_node_needs_no_file():
    config, _, _ = read_command(["node_id=a", "run.role=worker", "hub.repo_id=me/run"])
    assert config.cluster.node_ids == ["a"]
    with pytest.raises(ConfigError, match="node_id"):
        read_command(["run.role=worker"])


@pytest.mark.parametrize("node_id", ["007", "true", "1e3", "null"])
def test_an_id_is_taken_letter_by_letter(tmp_path, node_id):
    (tmp_path / "node.yaml").write_text(f"{{role: worker, repo_id: me/run, node_id: '{node_id}'}}")
    for word in (f"node_id={node_id}", f"distributed_yaml={tmp_path}/node.yaml"):
        config, _, _ = read_command([word, "run.role=worker", "hub.repo_id=me/run"])
        assert (config.cluster.node_ids, config.cluster.run_here) == ([node_id], [node_id])


@pytest.mark.parametrize("node_id", ["a,b", "a/b", "..", "a]", "a b"])
def test_an_id_that_is_no_name_is_one_and_refused(node_id):
    words = [f"node_id={node_id}", "run.role=worker", "hub.repo_id=me/run"]
    config, _, _ = read_command(words)
    with pytest.raises(ConfigError, match=r"cluster\.node_ids"):
        check_config(complete(config))


@pytest.mark.parametrize(
    ("block", "role"),
    [
        ({}, "single"),
        ({"enabled": False, "role": "worker"}, "single"),
        ({"enabled": True, "mode": "single", "role": "worker"}, "single"),
        ({"enabled": True, "role": "Worker", "node_id": "a"}, "worker"),
        ({"enabled": True, "mode": "Dumb_DiLoCo", "role": "worker", "node_id": "a"}, "worker"),
        ({"enabled": True, "mode": "SINGLE", "role": "worker"}, "single"),
        ({"enabled": True, "repo_id": "me/run", "node_id": "a"}, "master"),
        ({"enabled": True, "node_id": "a"}, "worker"),
        ({"role": "worker", "repo_id": "me/run", "node_id": "a"}, "worker"),
    ],
)
def test_the_role_is_read_as_the_plain_protocol_reads_it(block, role):
    assert f"run.role='{role}'" in translate(block).overrides


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("token", "hf_abcdefghijklmnopqrstuvwx"),
        ("mode", "fedavg"),
        ("inner_step", 5),
        ("role", "boss"),
    ],
)
def test_what_the_block_cannot_say_is_refused_by_name(field, value):
    block = {"enabled": True, "role": "worker", "node_id": "a"} | {field: value}
    with pytest.raises(ConfigError) as caught:
        translate(block)
    assert caught.value.setting == f"distributed.{field}"
    assert "hf_abc" not in str(caught.value)


def test_a_node_that_joins_others_needs_an_id():
    with pytest.raises(ConfigError, match=r"distributed\.node_id"):
        translate({"enabled": True, "role": "worker"})


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="distributed_yaml"):
        read_plain_block(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("a: [1")
    with pytest.raises(ConfigError, match="distributed_yaml"):
        read_plain_block(tmp_path / "bad.yaml")
