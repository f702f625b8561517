"""Whole runs through the command line."""

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
import torch
from failing import FailsInOneNode, SeesThreads
from following import merged
from programs import SMALL, Program, left_behind, program, ray_diloco
from safetensors.torch import load_file

pytestmark = pytest.mark.timeout(400)  # whole processes, perhaps on a busy machine

WALL_INPROC = ("engine=inproc", "time=wall")
LONG = ("run.max_steps=100000", "cluster.profiles=[{seconds_per_step: 0.02}]")
VIRTUAL = ("engine=inproc", "hub=memory", "time=virtual")


def numbers(folder):
    return json.loads((folder / "result.json").read_text())


def assert_well(result) -> None:
    assert (result["status"], result["range_sum"]) == ("done", "ok")
    assert result["eval_loss"] < result["initial_eval_loss"]


# -- runs ------------------------------------------------------------------------------------------


def test_the_quickstart_in_virtual_time_trains_and_repeats_itself(tmp_path):
    hashes = []
    for name in ("first", "second"):
        words = ("experiment=quickstart", "engine=inproc", "time=virtual", "run.max_steps=30")
        with ray_diloco(*words, folder=tmp_path / name) as run:
            assert run.end() == 0, run.output
            assert_well(run.result)
            hashes.append((run.result["trace_hash"], run.result["eval_loss"]))
            assert run.result["dropped_local_steps"] == 0
            evaluated = [each["outer_step"] for each in run.result["evaluations"]]
            assert evaluated == list(range(run.result["outer_steps"] + 1))
            assert load_file(run.run_dir / "model.safetensors")
    assert hashes[0] == hashes[1]


def test_a_run_in_wall_time_goes_through_a_hub_of_its_own(tmp_path):
    with ray_diloco(*SMALL, *WALL_INPROC, folder=tmp_path) as run:
        assert run.end() == 0, run.output
        assert_well(run.result)
        assert run.result["bytes_up"] > 0
        assert run.events("publication")


def test_a_run_whose_reader_goes_away_trains_on(tmp_path):
    words = (*SMALL, *VIRTUAL, f"hydra.run.dir={tmp_path}/run")
    command = [sys.executable, "-m", "ray_diloco.experiment.main", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stdout.readline()
        run.stdout.close()
        _, told = run.communicate(timeout=200)
    assert (run.returncode, told) == (0, b"")
    assert_well(numbers(tmp_path / "run"))


def test_role_single_trains_alone(command, tmp_path):
    code, _, err = command(
        *SMALL,
        "run.role=single",
        "cluster.nodes=1",
        "engine=inproc",
        f"hydra.run.dir={tmp_path}/run",
    )
    assert (code, err) == (0, "")
    result = numbers(tmp_path / "run")
    assert result["eval_loss"] < result["initial_eval_loss"]
    assert (result["commits"], result["outer_steps"]) == (0, 0)
    assert (tmp_path / "run" / "model.safetensors").exists()


def heads(run: Program) -> int:
    """Ray clusters that it has started."""
    return sum(each.name() == "gcs_server" for each in run.descendants())


@pytest.mark.parametrize("engine", ["inproc", pytest.param("ray", marks=pytest.mark.ray)])
def test_a_worker_joins_a_run_of_another_process_over_a_hub_of_its_own(engine, tmp_path):
    """With engine=ray each starts a Ray: two clusters, as of two sites, on one repository."""
    with program(
        "ray_diloco.hub.embedded.main", "--folder", "files", folder=tmp_path / "hub"
    ) as hub:
        hub.until(lambda: "HF_TOKEN=" in hub.output)
        env = dict(line.split("=", 1) for line in hub.output.split())
        there = (f"hub.endpoint={env['HF_ENDPOINT']}", "hub.repo_id=local/run")
        there = (*there, f"engine={engine}", "time=wall")
        pace = ("cluster.profiles=[{seconds_per_step: 0.02}]", "diloco.node_timeout=80")
        ids = ("cluster.nodes=2", "cluster.node_ids=[a,b]")
        leading = (*SMALL, *there, *pace, *ids, "cluster.run_here=[a]", "run.max_steps=60")
        joining = (*SMALL, *there, *pace, *ids, "cluster.run_here=[b]", "run.max_steps=40")
        token = {"HF_TOKEN": env["HF_TOKEN"]}
        with ray_diloco(*leading, folder=tmp_path / "a", **token) as master:
            master.until(lambda: master.events("opened"))
            with ray_diloco(*joining, "run.role=worker", folder=tmp_path / "b", **token) as worker:
                worker.until(lambda: worker.events("node_started"))
                assert [heads(each) for each in (master, worker)] == [int(engine == "ray")] * 2
                assert worker.end() == 0, worker.output
            assert master.end() == 0, master.output
        assert master.result["status"] == "done"
        assert merged(master, "a") == Counter(range(1, 61))
        assert merged(master, "b") == Counter(range(1, 41))


def test_a_master_without_ray_leads_a_node_that_it_did_not_start(tmp_path):
    """Both are ``ray-diloco-node``, which know of each other by the repository alone."""
    with program(
        "ray_diloco.hub.embedded.main", "--folder", "files", folder=tmp_path / "hub"
    ) as hub:
        hub.until(lambda: "HF_TOKEN=" in hub.output)
        env = dict(line.split("=", 1) for line in hub.output.split())
        shared = (*SMALL, "hub.repo_id=me/run", "hub.commits_per_hour=100000")
        shared = (*shared, "time=wall", "cluster.node_ids=[a,b]", "run.max_steps=40")

        def node(name: str, role: str):
            words = (*shared, f"node_id={name}", f"run.role={role}", "run_dir=run")
            module = "ray_diloco.experiment.node_main"
            return program(module, *words, folder=tmp_path / name, **env)

        with node("a", "master") as master:
            master.until(lambda: master.events("opened"))  # nobody can join before
            with node("b", "worker") as worker:
                assert worker.end() == 0, worker.output
            assert master.end() == 0, master.output
    assert_well(master.result)
    assert merged(master, "a") == merged(master, "b") == Counter(range(1, 41))


@pytest.fixture
def temporary():
    """A folder for temporary files, with a path that is short enough for Ray's sockets."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def half_written(folder: Path) -> list[Path]:
    """Files that were to be renamed, or that a hub was receiving."""
    marks = (".partial", ".arriving", "arriving/")
    found = [each for each in folder.rglob("*") if each.is_file()]
    return [each for each in found if any(mark in str(each.relative_to(folder)) for mark in marks)]


@pytest.mark.ray
def test_a_small_run_on_ray_trains_and_leaves_no_process_and_no_file(temporary, tmp_path):
    """A Ray of its own, whatever other one the environment knows of."""
    words = (*SMALL, "engine=ray", "time=wall")
    env = {"RAY_ADDRESS": "127.0.0.1:9", "TMPDIR": str(temporary)}
    with ray_diloco(*words, folder=tmp_path, **env) as run:
        run.until(lambda: run.events("node_started"))
        started = run.descendants()
        assert started
        assert list(temporary.rglob("raylet.out"))
        assert run.end() == 0, run.output
        assert_well(run.result)
        assert left_behind(started) == []
    assert [each for each in temporary.rglob("*") if each.is_file()] == []
    assert half_written(tmp_path) == []


# -- Ctrl-C ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["inproc", pytest.param("ray", marks=pytest.mark.ray)])
def test_ctrl_c_stops_cleanly_saves_and_leaves_no_process_and_no_file(engine, temporary, tmp_path):
    words = (*SMALL, f"engine={engine}", "time=wall", *LONG)
    with ray_diloco(*words, folder=tmp_path, TMPDIR=str(temporary)) as run:
        run.until(lambda: run.events("publication"))
        started = run.descendants()
        run.press_ctrl_c()
        assert run.end() == 130, run.output
        assert run.result["status"] == "stopped"
        assert run.result["range_sum"] == "ok"
        assert (run.run_dir / "model.safetensors").exists()
        assert "Traceback" not in run.output
        assert left_behind(started) == []
    assert [each for each in temporary.rglob("*") if each.is_file()] == []
    assert half_written(tmp_path) == []


@pytest.mark.parametrize("engine", ["inproc", pytest.param("ray", marks=pytest.mark.ray)])
def test_ctrl_c_twice_ends_at_once_and_leaves_no_process(engine, tmp_path):
    words = (*SMALL, f"engine={engine}", "time=wall", *LONG, "diloco.stop_timeout=60")
    with ray_diloco(*words, folder=tmp_path) as run:
        run.until(lambda: run.events("publication"))
        started = run.descendants()
        run.press_ctrl_c()
        run.until(lambda: "stopping" in run.output) if run.process.poll() is None else None
        run.press_ctrl_c()
        assert run.end() == 130, run.output
        assert left_behind(started) == []


# -- limits and failures ---------------------------------------------------------------------------


def test_max_tokens_ends_the_run_by_the_masters_word(command, tmp_path):
    later = ("run.max_steps=100000", "run.max_seconds=100000")
    limit = ("run.max_tokens=20000", *later, "inner.schedule=constant")
    code, _, err = command(*SMALL, *VIRTUAL, *limit, f"hydra.run.dir={tmp_path}/run")
    assert (code, err) == (0, "")
    result = numbers(tmp_path / "run")
    assert 20000 <= result["tokens_merged"] < 60000
    assert result["range_sum"] == "ok"


def test_max_seconds_ends_the_run_in_its_own_time(command, tmp_path):
    limit = (
        "run.max_seconds=10",
        "run.max_steps=100000",
        "run.max_tokens=1000000000",
        "inner.schedule=constant",
        "cluster.profiles=[{seconds_per_step: 0.5}]",
    )
    code, _, err = command(*SMALL, *VIRTUAL, *limit, f"hydra.run.dir={tmp_path}/run")
    assert (code, err) == (0, "")
    steps = [node["local_steps"] for node in _nodes(numbers(tmp_path / "run"))]
    assert all(18 <= count <= 20 for count in steps)


def test_a_node_that_fails_is_named_and_the_others_go_on(command, tmp_path):
    FailsInOneNode.trained.clear()
    model = (
        "model=custom",
        "+model.custom._target_=failing.FailsInOneNode",
        "model.allow_targets=[failing]",
    )
    code, _, err = command(
        *SMALL, *VIRTUAL, *model, "cluster.nodes=3", f"hydra.run.dir={tmp_path}/run"
    )
    result = numbers(tmp_path / "run")
    assert code == 1, err
    assert result["status"] == "failed"
    assert "the sixth step goes wrong" in json.dumps(result["failures"])
    assert result["range_sum"].startswith("unchecked: no report of n")
    assert result["tokens"] > sum(node["tokens"] for node in _nodes(result))
    assert sorted(node["local_steps"] for node in _nodes(result)) == [12, 12]
    assert result["eval_loss"] < result["initial_eval_loss"]


def test_nodes_compute_with_as_many_threads_as_were_asked_for(command, tmp_path):
    SeesThreads.seen.clear()
    before = torch.get_num_threads()
    asked = before + 2
    model = (
        "model=custom",
        "+model.custom._target_=failing.SeesThreads",
        "model.allow_targets=[failing]",
    )
    words = (*SMALL, *VIRTUAL, *model, f"run.threads_per_node={asked}", "run.report=false")
    code, _, err = command(*words, f"hydra.run.dir={tmp_path}/run")
    assert (code, err) == (0, "")
    assert asked in SeesThreads.seen
    assert SeesThreads.seen <= {before, asked}  # the first batch is tried out before the run
    assert torch.get_num_threads() == before


def _nodes(result) -> list[dict]:
    nodes = result["nodes"]
    return list(nodes.values()) if isinstance(nodes, dict) else nodes


# -- what Ray carries ------------------------------------------------------------------------------


@pytest.mark.ray
def test_no_tensor_goes_through_rays_object_store(tmp_path):
    import ray
    from ray._private.internal_api import get_memory_info_reply, get_state_from_address
    from scene import configure  # a composed configuration

    from ray_diloco.cluster.ray_session import ray_session
    from ray_diloco.cluster.settings import RaySettings
    from ray_diloco.experiment.run import run

    config = configure(*SMALL, "engine=ray", "time=wall", "model.width=256", "model.hidden=512")
    with ray_session(RaySettings()):
        result = run(config, tmp_path / "run")
        state = get_state_from_address(ray.get_runtime_context().gcs_address)
        store = get_memory_info_reply(state).store_stats
    assert result.status == "done"
    assert (tmp_path / "run" / "model.safetensors").stat().st_size > 500_000
    assert store.cumulative_created_bytes < 200_000
