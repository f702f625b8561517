"""Runs on a Ray cluster of several machines, of which processes and machines are killed."""

import shutil
from pathlib import Path

import pytest
from end_to_end.following import accounts, go_on, merged, none_twice, stopped_well
from end_to_end.machines import OTHERS, Machines, machines
from end_to_end.programs import SMALL, ray_diloco

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(400)]

WORDS = (
    *SMALL,
    "engine=ray",
    "time.emulate_profile=true",
    "cluster.nodes=3",
    "run.max_steps=100000",
    "run.report=false",
    "diloco.poll_interval=0.2",
    "cluster.profiles=[{seconds_per_step: 0.05}]",
)
NODES = ("n0", "n1", "n2")
GONE = ("its process died", "its machine has gone")
"""What Ray makes of a process that is not there any more depends on what it hears of first."""
FULL = {"RAY_memory_usage_threshold": "0.0", "RAY_memory_monitor_refresh_ms": "100"}
"""Of a raylet that takes its machine's memory for full, and kills what runs there."""


@pytest.fixture(scope="module")
def started():
    with machines() as started:
        yield started


@pytest.fixture
def cluster(started):
    started.make_whole()
    return started


def playing(cluster: Machines, folder, *words: str):
    joined = f"ray.address={cluster.address}"
    return ray_diloco(*WORDS, joined, *words, folder=folder)


def learned_as_well(result: dict, cluster: Machines, folder: Path) -> bool:
    """Its loss is near that of a run without failures that merged as many tokens, after a fall by
    over 2: 0.2 to 0.3 higher where seen, since while hub and master are away nodes train alone.
    """
    with playing(cluster, folder, f"run.max_tokens={result['tokens_merged']}") as calm:
        assert calm.end() == 0, calm.output
    return result["eval_loss"] < calm.result["eval_loss"] + 0.6


def test_a_run_outlives_the_processes_of_a_node_of_its_master_and_of_its_hub(cluster, tmp_path):
    with playing(cluster, tmp_path) as run:
        go_on(run, 1)
        node = cluster.actors("_NodeActor")[0]
        node.kill()
        run.until(lambda: len(run.events("node_started")) == 4)
        (hub,) = cluster.actors("_HubActor")
        hub.kill()
        go_on(run)
        (master,) = cluster.actors("_MasterActor")
        master.kill()
        run.until(lambda: len(run.events("opened")) == 2)
        go_on(run)
        result = stopped_well(run)
    (node_id,) = {each["participant"] for each in run.events("crashed")}
    assert set(result["restarts"]) == {"hub", "n0/master", node_id}
    assert all(why.startswith(GONE) for each in result["restarts"].values() for why in each)
    assert set(result["crash_losses"]) <= {node_id}
    assert none_twice(run, *NODES)
    assert learned_as_well(result, cluster, tmp_path / "calm")
    assert cluster.left() == []


def test_a_run_outlives_a_machine_with_its_disk_and_goes_on_when_its_head_is_lost_too(
    cluster, tmp_path
):
    """The machine has the master and a node; the head of the run is the process that started it."""
    with playing(cluster, tmp_path, "ray.master_label_selector={kind: 'in(b,c)'}") as run:
        go_on(run, 1)
        cluster.kill("b")
        for name in ("n0", "master"):
            shutil.rmtree(run.run_dir / "state" / name)
        run.until(lambda: len(run.events("opened")) == 2)
        run.until(lambda: len(run.events("node_started")) == 4)
        go_on(run)
        run.process.kill()
        run.process.wait()
    assert cluster.left() == []
    death, *_ = run.events("crashed")
    assert {each["participant"] for each in run.events("crashed")} == {"n0"}
    with ray_diloco(f"run.resume={run.run_dir}", folder=tmp_path) as run:
        go_on(run)
        result = stopped_well(run)
    assert [each["status"] for each in result["sessions"]] == ["killed", "stopped"]
    assert death["reason"].startswith(GONE)
    assert result["restarts"]["n0"][0] == death["reason"]
    first = next(each for each in run.events("node_started") if each["participant"] == "n0")
    trained = set(range(1, death["local_step"] + 1))
    lost = len(trained - set(accounts(run)["n0", first["nonce"]].merged))
    assert result["crash_losses"] == ({"n0": lost} if lost else {})
    assert none_twice(run, *NODES)
    assert cluster.left() == []


def test_a_run_outlives_a_machine_whose_memory_is_full(cluster, tmp_path):
    """Of the two machines that a node may go to, one goes, and for a while only the full one is
    left.
    """
    selector = "+cluster.overrides.n1.label_selector={kind: 'in(b,full)'}"
    with playing(cluster, tmp_path, selector, "ray.restarts=10") as run:
        go_on(run, 1)
        cluster.add("full", "127.0.0.4", env_vars=FULL)
        cluster.kill("b")
        run.until(lambda: any("memory" in each["reason"] for each in run.events("crashed")))
        go_on(run)
        before = merged(run, "n1").total()
        cluster.add("b", OTHERS["b"])
        run.until(lambda: merged(run, "n1").total() > before)
        result = stopped_well(run)
    assert set(result["restarts"]) == {"n1"}
    assert "memory" in run.output
    assert set(result["crash_losses"]) <= {"n1"}
    assert none_twice(run, *NODES)
    assert cluster.left() == []


def test_what_no_machine_can_take_is_refused_before_anything_starts(cluster, tmp_path):
    with playing(cluster, tmp_path, "+cluster.overrides.n1.label_selector={kind: z}") as run:
        assert run.end() == 2
    assert "cluster.overrides.n1.label_selector={'kind': 'z'}: cannot place n1" in run.output
    assert "kind is b, c, head" in run.output
    assert "Traceback" not in run.output
    assert cluster.left() == []


def asked(cluster: Machines, *words: str) -> tuple[str, ...]:
    """The words of a preflight of nodes that each ask for something."""
    return (*WORDS, f"ray.address={cluster.address}", "run.preflight=true", *words)


def test_preflight_says_who_would_go_where(command, cluster, tmp_path):
    profile = "cluster.profiles=[{label_selector: {kind: '!head'}}]"
    code, out, err = command(*asked(cluster, profile), f"hydra.run.dir={tmp_path}/run")
    assert (code, err) == (0, "")
    lines = [line.split(maxsplit=2)[1:] for line in out.splitlines() if line.startswith("machine")]
    told = {address: names.split(", ") for address, names in lines}
    assert sorted(name for each in OTHERS.values() for name in told.pop(each)) == list(NODES)
    assert list(told.values()) == [["n0/master"]]
    assert not (tmp_path / "run").exists()
    assert cluster.left() == []


@pytest.mark.parametrize(
    ("profile", "told"),
    [
        ("label_selector: {kind: z}", "label that a machine of this Ray cluster has: kind is b, c"),
        ("num_gpus: 1", "cannot place n0: expected 0 GPUs at most"),
        ("memory_gb: 100000", "GiB of memory at most, what the largest machine has"),
        ("num_cpus: 2", "cannot place n0: expected 1 CPUs at most"),
        ("num_cpus: 1, label_selector: {kind: b}", "1 of 3 machines suit it, and other actors"),
    ],
)
def test_preflight_says_what_cannot_be_placed_and_why(command, cluster, tmp_path, profile, told):
    words = asked(cluster, f"cluster.profiles=[{{{profile}}}]")
    code, _, err = command(*words, "run.device=cpu", f"hydra.run.dir={tmp_path}/run")
    assert code == 2
    assert told in err
    assert len(err.splitlines()) == 1
    assert cluster.left() == []
