"""An unmodified public peer in our run, and our node in a run that it leads.

Needs the extra `interop`; runs with `-m interop`.
"""

import json
import signal

import pytest
from history import CARD, MODEL, History, OuterLoopByHand
from processes import (
    REPO,
    environment,
    our_overrides,
    peers_configuration,
    started,
    wait_for,
)

from ray_diloco.hub.client import HubRepository
from ray_diloco.hub.embedded.server import EmbeddedHub
from ray_diloco.hub.entrance import enter
from ray_diloco.hub.settings import HubSettings

pytest.importorskip("speedtronic", reason="needs the extra interop; runs in .ci/run")
pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]


@pytest.fixture
def hub(tmp_path):
    with EmbeddedHub(tmp_path / "hub") as hub:
        enter(HubSettings(), endpoint=hub.endpoint, token=hub.token, repo_id=REPO, make=True)
        yield hub


def folder_of(tmp_path, name: str):
    folder = tmp_path / name
    folder.mkdir()
    return folder


def outer_step_on(hub) -> int:
    """The newest global's number; -1 before there is one."""
    repository = HubRepository(endpoint=hub.endpoint, token=hub.token, repo_id=REPO, branch="main")
    commit = repository.head_commit()
    if repository.entry(CARD, commit=commit) is None:
        return -1
    return json.loads(repository.read(CARD, commit=commit, limit=10**7))["outer_step"]


def test_a_peers_worker_joins_our_run_and_its_deltas_are_in_the_mean(hub, tmp_path):
    ours, theirs = folder_of(tmp_path, "ours"), folder_of(tmp_path, "theirs")
    run = [
        "ray_diloco.experiment.main",
        *our_overrides(hub),
        f"hydra.run.dir={ours / 'run'}",
        "cluster=uniform",
        "cluster.nodes=1",
        "cluster.profiles=[{seconds_per_step: 0.05}]",
        "time.emulate_profile=true",
        "diloco.node_timeout=6",
        "run.max_steps=400",
    ]
    peer = peers_configuration(theirs, role="worker", node_id="peer", max_steps=100)
    with started(run, ours, environment(hub, ours)) as leading:
        wait_for(lambda: outer_step_on(hub) >= 0, running=[leading])
        words = ["speedtronic", "train", "--config", str(peer)]
        with started(words, theirs, environment(hub, theirs)) as working:
            wait_for(lambda: working.poll() is not None, running=[leading])
            assert working.returncode == 0, (theirs / "output.txt").read_text()
        wait_for(lambda: leading.poll() is not None, running=[])
        assert leading.returncode == 0, (ours / "output.txt").read_text()
    result = json.loads((ours / "run" / "result.json").read_text())
    assert result["rejected_deltas"] in (0, [], {})

    history = History(hub, tmp_path)
    by_hand, rounds = None, []
    for commit in history:
        if CARD not in commit.added:
            continue
        card = history.card(commit.id)
        if by_hand is None:
            by_hand = OuterLoopByHand(history.tensors(MODEL, commit.id))
        elif MODEL in commit.added:
            paths = [f"nodes/{node}/delta_{step}.safetensors" for node, _, step in card["round"]]
            by_hand.merge([history.tensors(path, commit.before) for path in paths])
            rounds.append(paths)
            assert not set(paths) & set(commit.files)
        by_hand.assert_equals(history.tensors(MODEL, commit.id))
    of_the_peer = [path for paths in rounds for path in paths if "/peer/" in path]
    assert of_the_peer
    assert len(set(of_the_peer)) == len(of_the_peer)
    assert any("/n0/" in path for paths in rounds for path in paths)


def test_our_node_joins_a_run_that_a_peer_leads_and_is_in_its_mean(hub, tmp_path):
    """By a file of the peer's own kind."""
    ours, theirs = folder_of(tmp_path, "ours"), folder_of(tmp_path, "theirs")
    peer = peers_configuration(theirs, role="master", node_id="peer", max_steps=10**6)
    same_file = peers_configuration(ours, role="worker", node_id="ours", max_steps=150)
    join = [
        "ray_diloco.experiment.node_main",
        f"distributed_yaml={same_file}",
        f"run_dir={ours / 'run'}",
        "run.max_steps=150",
        *(word for word in our_overrides(hub) if not word.startswith(("diloco.", "hub.repo_id"))),
        "cluster.profiles=[{seconds_per_step: 0.05}]",
        "time.emulate_profile=true",
    ]
    words = ["speedtronic", "train", "--config", str(peer)]
    with started(words, theirs, environment(hub, theirs)) as leading:
        wait_for(lambda: outer_step_on(hub) >= 0, running=[leading])
        with started(join, ours, environment(hub, ours)) as working:
            wait_for(lambda: working.poll() is not None, running=[leading])
            told = (ours / "output.txt").read_text()
            assert working.returncode == 0, told
        assert "run: not read, only the distributed: block is" in told.splitlines()
        assert told.count("distributed.cache_dir: ") == 1
        last = outer_step_on(hub)
        wait_for(lambda: outer_step_on(hub) >= last + 2, running=[leading])
        leading.send_signal(signal.SIGTERM)
        leading.wait()

    history = History(hub, tmp_path)
    counts = [
        event["deltas_included"]
        for event in map(json.loads, (theirs / "events.jsonl").read_text().splitlines())
        if event.get("event") == "outer_step" and event["deltas_included"]
    ]
    by_hand, waiting, merged = None, [], []
    for commit in history:
        if MODEL in commit.added and by_hand is None:
            by_hand = OuterLoopByHand(history.tensors(MODEL, commit.id))
        elif MODEL in commit.added and counts:
            taken, waiting = waiting[: counts[0]], waiting[counts.pop(0) :]
            by_hand.merge([history.tensors(path, where) for path, where in taken])
            by_hand.assert_equals(history.tensors(MODEL, commit.id))
            merged += taken
        new = [path for path in commit.added if path.endswith(".safetensors")]
        waiting += [(path, commit.id) for path in new if path.startswith("nodes/")]
    of_ours = [(path, where) for path, where in merged if "/ours/" in path]
    assert of_ours
    assert any("/peer/" in path for path, _ in merged)
    steps = [int(history.header(path, where)["local_step"]) for path, where in of_ours]
    assert all(step % 20 for step in steps), "their cache tells files apart by their numbers alone"
    covers = [history.header(path, where)["covers"] for path, where in of_ours]
    assert covers[0].startswith("1-")
