"""Runs on machines with networks and disks of their own, whose networks are cut."""

from pathlib import Path

import pytest
from end_to_end.following import go_on, merged, none_twice, stopped_well
from end_to_end.networks import why_not
from end_to_end.programs import SMALL, program, ray_diloco
from end_to_end.raylets import CLIENT_PORT, HEAD, PORT, Raylets, raylets

lacking = why_not()
pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(lacking), reason=lacking),
]

HUB, NODE = "ray_diloco.hub.embedded.main", "ray_diloco.experiment.node_main"
LAPTOP = "laptop"
"""A machine without a raylet."""
WORDS = (
    *SMALL,
    "time.emulate_profile=true",
    "cluster.profiles=[{seconds_per_step: 0.05}]",
    "run.max_steps=100000",
    "run.report=false",
    "diloco.poll_interval=0.2",
)

IMPATIENT = ("hub.connect_timeout=2", "hub.read_timeout=2")
"""So that a cut is felt after two seconds, long before Ray takes a machine for dead."""

IN_TROUBLE = "trouble with the hub, trying on"


@pytest.fixture(scope="module")
def cluster():
    with raylets("b", "c", beside=(LAPTOP,)) as started:
        yield started


def at_head(cluster: Raylets) -> str:
    """By its address: ``auto`` looks at all processes, and finds the Ray of another test too."""
    return f"ray.address={cluster.wires.address(HEAD)}:{PORT}"


def playing(cluster: Raylets, folder, *words: str):
    """A run of three nodes, started on the head, where the master stays."""
    own = (f"diloco.state_dir={cluster.wires.place}", "engine=ray", at_head(cluster))
    inside = cluster.wires.inside(HEAD)
    words = (*WORDS, *own, "cluster.nodes=3", *words)
    return ray_diloco(*words, folder=folder, inside=inside, **cluster.environment)


def in_trouble(log: Path) -> bool:
    """Whether whoever wrote it says that something is tried at the hub again."""
    return log.exists() and IN_TROUBLE in log.read_text()


def test_a_cut_that_ray_does_not_notice_costs_retries_alone(cluster, tmp_path):
    selector = "+cluster.overrides.n1.label_selector={kind: b}"
    with playing(cluster, tmp_path, selector, *IMPATIENT) as run:
        run.until(lambda: merged(run, "n1"))
        cluster.wires.cut("b")
        run.until(lambda: in_trouble(run.run_dir / "logs" / "n1.log"))
        cluster.wires.mend("b")
        before = merged(run, "n1").total()
        run.until(lambda: merged(run, "n1").total() > before)
        result = stopped_well(run)
    assert result["restarts"] == {}
    assert none_twice(run, "n0", "n1", "n2")
    assert cluster.left() == []


def test_nodes_of_machines_that_were_cut_off_go_on_there_or_elsewhere(cluster, tmp_path):
    """n1 waits for its machine and its disk; n2 goes on elsewhere without, while its predecessor
    still trains where nobody hears of it.
    """
    where = {"n0": HEAD, "n1": "b", "n2": f"in({HEAD},c)"}
    words = [f"+cluster.overrides.{n}.label_selector={{kind: '{on}'}}" for n, on in where.items()]
    with playing(cluster, tmp_path, *words, "ray.restarts=2") as run:
        run.until(lambda: all(merged(run, name) for name in where))
        for name in ("b", "c"):
            cluster.wires.cut(name)
        run.until(lambda: len(run.events("node_started")) == 4)
        go_on(run)
        for name in ("b", "c"):
            cluster.wires.mend(name)
            cluster.await_end(name)
        cluster.start("b")
        run.until(lambda: len(run.events("node_started")) == 5)
        before = merged(run, "n1").total()
        run.until(lambda: merged(run, "n1").total() > before)
        result = stopped_well(run)
    assert {name: len(why) for name, why in result["restarts"].items()} == {"n1": 1, "n2": 1}
    assert none_twice(run, *where)
    assert cluster.left() == []


def test_a_node_without_ray_joins_over_the_network_of_the_head_and_outlives_a_cut(
    cluster, tmp_path
):
    wires, token_file = cluster.wires, tmp_path / "token"
    serving = ("--host", wires.address(HEAD), "--port", "8765", "--token-file", str(token_file))
    with program(HUB, *serving, folder=tmp_path / "hub", inside=wires.inside(HEAD)) as hub:
        hub.until(lambda: "HF_TOKEN" in hub.output)
        known = {
            "HF_ENDPOINT": f"http://{wires.address(HEAD)}:8765",
            "HF_TOKEN": token_file.read_text().strip(),
        }
        shared = (
            *WORDS,
            *IMPATIENT,
            "hub=huggingface",
            "hub.repo_id=me/run",
            "hub.commits_per_hour=100000",
            "cluster.nodes=2",
            "cluster.node_ids=[n0,n1]",
        )
        leads = (*shared, "engine=ray", at_head(cluster), "cluster.run_here=[n0]")
        on_head = {"inside": wires.inside(HEAD), **cluster.environment, **known}
        with ray_diloco(*leads, folder=tmp_path / "leader", **on_head) as run:
            go_on(run, 1)
            joins = (
                *shared,
                "run.role=worker",
                "node_id=n1",
                f"run_dir={tmp_path / 'node' / 'run'}",
            )
            on_laptop = {"inside": wires.inside(LAPTOP), **known}
            with program(NODE, *joins, folder=tmp_path / "node", **on_laptop) as node:
                run.until(lambda: merged(run, "n1"))
                wires.cut(LAPTOP)
                node.until(lambda: IN_TROUBLE in node.output)
                go_on(run)
                wires.mend(LAPTOP)
                before = merged(run, "n1").total()
                run.until(lambda: merged(run, "n1").total() > before)
                node.press_ctrl_c()
                assert node.end() == 130, node.output
            stopped_well(run)
    assert none_twice(run, "n0", "n1")
    assert cluster.left() == []


def test_a_run_is_started_from_a_machine_without_ray_over_a_ray_client(cluster, tmp_path):
    address = f"ray.address=ray://{cluster.wires.address(HEAD)}:{CLIENT_PORT}"
    words = (*WORDS, "engine=ray", address, "cluster.nodes=3")
    inside = cluster.wires.inside(LAPTOP)
    with ray_diloco(*words, folder=tmp_path, inside=inside, **cluster.environment) as run:
        go_on(run, 1)
        cluster.actors("_NodeActor")[0].kill()
        run.until(lambda: len(run.events("node_started")) == 4)
        go_on(run)
        result = stopped_well(run)
    assert len(result["restarts"]) == 1
    assert none_twice(run, "n0", "n1", "n2")
    assert cluster.left() == []
