"""Faults that the plain protocol's public implementation has, each shown to be impossible here.

Those that a smaller test shows:

    a boundary right after an install uploads zeros      node/test_coordinator.py
    a 401 is retried through the whole back-off          hub/test_entrance.py, hub/test_limits.py
    delta names such as `delta_+7` are separate steps    protocol/test_paths.py
    a node id escapes the state folder                   protocol/test_paths.py (and below)
    variances turn negative                              master/test_round_files.py
    hidden weights missing from the inner optimizer      workload/test_optimizers.py
"""

import shutil
import subprocess
import sys
import textwrap

import pytest
import torch
from scene import (
    PowerCut,
    Scene,
    addition,
    delta_bytes,
    playing,
    refusals_of,
    rounds_of,
)
from subjects import Plain, batches, build

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.node_main import read_command
from ray_diloco.experiment.range_sum import check_range_sum
from ray_diloco.protocol.settings import DilocoSettings
from ray_diloco.timing.profile import NodeProfile
from ray_diloco.workload.settings import InnerSettings

PLAIN_MEAN = {"outer_lr": 1.0, "outer_momentum": 0.0}
STILL = InnerSettings(
    name="sgd", learning_rate=1e-30, weight_decay=0.0, warmup_steps=0, schedule="constant"
)
"""Trains without moving: the live model is exactly the global that was installed."""


@pytest.fixture
def scene(tmp_path):
    settings = DilocoSettings(inner_steps=4, poll_interval=1.0, **PLAIN_MEAN)
    return Scene(tmp_path, lambda: build(Plain), settings)


def filled(value: float):
    return {
        name: torch.full_like(entry, value) for name, entry in build(Plain).state_dict().items()
    }


def moved_by(scene: Scene) -> float:
    """How far the newest global is from the first one, which is the same for every number."""
    first, now = build(Plain).state_dict(), scene.weights()
    distances = torch.cat([(first[name] - now[name]).flatten() for name in first])
    assert (distances - distances[0]).abs().max() < 1e-5
    return round(distances[0].item(), 4)


def assert_holds(part, weights) -> None:
    for name, value in part.model.state_dict().items():
        assert torch.equal(value, weights[name]), name


# fault: deltas of two nodes with one step number overwrite each other in the master's cache
def test_deltas_of_two_nodes_with_one_number_both_count(scene):
    master = scene.add_master()
    with playing(scene):
        scene.pass_seconds(1.5)
        scene.put_delta("a", 4, filled(0.1))
        scene.put_delta("b", 4, filled(0.3))
        scene.pass_seconds(3)
        assert moved_by(scene) == 0.2
    assert rounds_of(master) == [[("a", 4), ("b", 4)]]


# fault: a shorter re-download under a memory map kills the master
def test_a_file_that_is_replaced_by_a_shorter_one_costs_only_itself(scene):
    master = scene.add_master()
    whole = delta_bytes(filled(0.1), "a", 4, nonce=None)
    path = "nodes/a/delta_4.safetensors"
    with playing(scene):
        scene.pass_seconds(1.5)
        for content in (whole, whole[:-40]):
            scene.act(
                lambda c=content: scene.repository().commit("x", additions=[addition(path, c)])
            )
            scene.pass_seconds(3)
        scene.put_delta("b", 4, filled(0.3))
        scene.pass_seconds(3)
        assert moved_by(scene) == 0.4
    assert rounds_of(master) == [[("a", 4)], [("b", 4)]]
    assert len(refusals_of(master)) == 1


# fault: a mid-loop global drops local steps
# fault: the run ends with deltas unmerged
def test_no_step_is_lost_between_the_first_and_the_last(tmp_path):
    settings = DilocoSettings(inner_steps=5, poll_interval=0.3)
    scene = Scene(tmp_path, lambda: build(Plain), settings)
    slow = NodeProfile(seconds_per_step=1.7, latency_ms=1200.0)
    nodes = [
        scene.add_node("a", batches(1), steps=23),
        scene.add_node("b", batches(2), steps=18, profile=slow),
    ]
    master = scene.add_master(expected=["a", "b"])
    with playing(scene):
        pass
    assert check_range_sum(tuple(node.report for node in nodes), master.report) == []
    assert [node.report.dropped + node.report.unsent for node in nodes] == ["", ""]
    accounts = master.report.accounts
    assert accounts["a"]["nonce-a"]["merged"] == "1-23"
    assert accounts["b"]["nonce-b"]["merged"] == "1-18"
    in_the_middle = [e for e in nodes[0].events if e["event"] == "install" and e["local_step"] % 5]
    assert in_the_middle


def test_nothing_lies_unmerged_in_the_repository_of_a_run_that_has_ended(scene):
    node = scene.add_node("a", batches(1), steps=10)
    scene.add_master(expected=["a"])
    with playing(scene):
        scene.pass_seconds(60)
        assert scene.paths() == ["nodes/a/node.json"]
    assert node.report.deltas_landed == 3


# fault: a crash between publish and local save merges twice
# fault: an older checkpoint rolls the master back
def test_a_master_that_dies_right_after_a_publication_merges_nothing_twice(scene, tmp_path):
    first = scene.add_master(dies_at="publication")
    with playing(scene):
        scene.pass_seconds(1.5)
        shutil.copytree(tmp_path / "m", tmp_path / "old")
        scene.put_delta("a", 4, filled(0.1))
        scene.pass_seconds(3)
        assert [type(error) for error in first.errors] == [PowerCut]
        scene.put_delta("a", 4, filled(0.1))  # a commit that comes late
        second = scene.add_master("m2", resume=True, state_dir=tmp_path / "old")
        scene.start()
        scene.pass_seconds(300)
        assert moved_by(scene) == 0.1
        scene.put_delta("a", 8, filled(0.2), base=1)
        scene.pass_seconds(5)
        assert moved_by(scene) == 0.3
        assert scene.card().outer_step == 2
    assert rounds_of(first) == [[("a", 4)]]
    assert rounds_of(second) == [[("a", 8)]]


# fault: a new model under old metadata is installed under the old step
def test_weights_are_read_where_the_metadata_were_last_changed(scene):
    early = scene.add_node("a", batches(1), inner=STILL, steps=60)
    with playing(scene):
        scene.publish_as_a_peer(weights=filled(1.0), card={"outer_step": 1})
        scene.pass_seconds(5)
        scene.publish_as_a_peer(weights=filled(2.0))
        late = scene.add_node("b", batches(2), inner=STILL, steps=60)
        scene.start()
        scene.pass_seconds(20)
        assert_holds(early, filled(1.0))
        assert_holds(late, filled(1.0))
        scene.publish_as_a_peer(card={"outer_step": 2})
        scene.pass_seconds(20)
        assert_holds(early, filled(2.0))
        assert_holds(late, filled(2.0))
    for part in (early, late):
        assert [e["outer_step"] for e in part.events if e["event"] == "install"] == [1, 2]


# fault: one NaN poisons the global
def test_one_value_that_is_not_a_number_costs_only_its_own_delta(scene):
    master = scene.add_master()
    spoiled = filled(0.1)
    spoiled["outer.bias"][1] = float("nan")
    with playing(scene):
        scene.pass_seconds(1.5)
        scene.put_delta("a", 4, spoiled)
        scene.put_delta("b", 4, filled(0.3))
        scene.pass_seconds(3)
        assert moved_by(scene) == 0.3
        assert scene.paths() == []
    assert rounds_of(master) == [[("b", 4)]]
    assert "finite" in refusals_of(master)[0]


# fault: `model_file` redirects to any file
@pytest.mark.parametrize(
    "elsewhere", ["../secret.safetensors", "/etc/passwd", "nodes/a/delta_4.safetensors"]
)
def test_metadata_that_name_another_file_are_refused(scene, elsewhere):
    node = scene.add_node("a", batches(1), inner=STILL, steps=60)
    with playing(scene):
        scene.publish_as_a_peer(weights=filled(1.0), card={"outer_step": 1})
        scene.pass_seconds(5)
        scene.publish_as_a_peer(
            weights=filled(2.0), card={"outer_step": 2, "model_file": elsewhere}
        )
        scene.pass_seconds(10)
        assert_holds(node, filled(1.0))
    refused = [each["reason"] for each in node.events if each["event"] == "global_refused"]
    assert refused
    assert "model_file" in refused[0]


# fault: two masters overwrite each other
def test_of_two_masters_each_delta_is_merged_by_one(scene):
    masters = [scene.add_master()]
    with playing(scene):
        scene.pass_seconds(1.5)
        masters.append(scene.add_master("m2", resume=True))
        scene.start()
        for step in range(1, 7):
            scene.put_delta("a", step, filled(0.1), base=0)
            scene.pass_seconds(50)
        assert moved_by(scene) == 0.6
    merged = [delta for part in masters for deltas in rounds_of(part) for delta in deltas]
    assert sorted(merged) == [("a", step) for step in range(1, 7)]


# fault: a restarted worker's delta is lost because its name was seen
@pytest.mark.parametrize(("before", "after"), [("nonce-1", "nonce-2"), (None, None)])
def test_a_restarted_nodes_delta_under_an_old_name_counts(scene, before, after):
    master = scene.add_master()
    with playing(scene):
        scene.pass_seconds(1.5)
        scene.put_delta("a", 4, filled(0.1), nonce=before)
        scene.pass_seconds(3)
        scene.put_delta("a", 4, filled(0.3), nonce=after)
        scene.pass_seconds(3)
        assert moved_by(scene) == 0.4
    assert rounds_of(master) == [[("a", 4)], [("a", 4)]]


# fault: a step number in a cache file name hides rewritten weights
def test_what_lies_on_a_nodes_disk_hides_no_weights(tmp_path):
    for value in (1.0, 2.0):
        scene = Scene(tmp_path, lambda: build(Plain), DilocoSettings(poll_interval=1.0))
        node = scene.add_node("a", batches(1), inner=STILL, steps=10)
        with playing(scene):
            scene.publish_as_a_peer(weights=filled(value), card={"outer_step": 3})
            scene.pass_seconds(5)
            assert_holds(node, filled(value))


# fault: a node id from the environment escapes the state folder
def test_a_node_has_no_id_from_the_environment(monkeypatch):
    for name in ("HF_USERNAME", "USER"):
        monkeypatch.setenv(name, "../../etc")
    with pytest.raises(ConfigError, match="node_id"):
        read_command(["run.max_steps=1"])


# fault: every poll fetches the whole history again
def test_what_was_fetched_once_is_not_fetched_again(scene):
    master = scene.add_master()
    with playing(scene):
        scene.pass_seconds(1.5)
        size = len(delta_bytes(filled(0.1), "a", 1))
        for step in (1, 2, 3):
            scene.put_delta("a", step, filled(0.1))
            scene.pass_seconds(40)
    assert master.report.deltas_merged == 3
    assert master.report.bytes_down < 3.5 * size


# fault: memory grows with the number of deltas
PEAK = """
    import resource, sys
    import torch
    from pathlib import Path
    from safetensors.torch import save_file
    from ray_diloco.master.aggregation import FetchedDelta
    from ray_diloco.master.outer_optimizer import OuterOptimizer
    from ray_diloco.master.outer_state import GlobalFiles
    from ray_diloco.master.round_files import aggregate_and_step, write_first_global
    from ray_diloco.master.validation import NormLimits
    from ray_diloco.protocol.delta_card import DeltaCard
    from ray_diloco.tensors.schema import StateSchema

    torch.set_num_threads(1)
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    outer = OuterOptimizer()
    state = {"w": torch.zeros(1_000_000)}
    schema = StateSchema.of_state(state)
    first = write_first_global(
        state, schema=schema, optimizer=outer, folder=folder, model_metadata={}, state_metadata={}
    )
    files = GlobalFiles(model=first.model.path, state=first.state.path, outer_step=0)
    deltas = []
    for number in range(count):
        card = DeltaCard(node_id=f"n{number}", local_step=1, base_outer_step=0, nonce="x")
        file = folder / f"{number}.safetensors"
        save_file({"w": torch.ones(1_000_000)}, file, metadata=card.header())
        path = f"nodes/n{number}/delta_1.safetensors"
        deltas.append(FetchedDelta(path=path, file=file, card=card))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    done = aggregate_and_step(
        deltas, previous=files, schema=schema, optimizer=outer, limits=NormLimits(),
        folder=folder, model_metadata={}, describe_state=lambda merge: {},
    )
    assert len(done.merge.merged) == count
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_the_memory_of_a_round_does_not_grow_with_the_number_of_deltas(tmp_path):
    def peak_kilobytes(count: int) -> int:
        folder = tmp_path / str(count)
        folder.mkdir()
        command = [sys.executable, "-c", textwrap.dedent(PEAK), str(folder), str(count)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    one_delta = 4_000  # kilobytes
    assert peak_kilobytes(20) - peak_kilobytes(2) < one_delta
