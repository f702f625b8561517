"""When deltas are merged and what nodes do meanwhile, with real participants in virtual time."""

import pytest
import reference
import torch
from reference_state import adamw
from safetensors.torch import load_file
from scene import Scene, playing, rounds_of
from subjects import Counting, Plain, batches, build

from ray_diloco.protocol.run import RunLimits
from ray_diloco.protocol.settings import DilocoSettings
from ray_diloco.timing.profile import NodeProfile

EQUAL = (1.0, 1.0, 1.0, 1.0)
UNEQUAL = (1.0, 1.3, 2.0, 3.0)


def settings(**changed) -> DilocoSettings:
    return DilocoSettings(**({"inner_steps": 4, "poll_interval": 0.1} | changed))


def play(folder, used, speeds, *, steps=20, kind=Plain, profiles=None):
    """A run of so many steps of each node that has ended well."""
    scene = Scene(folder, lambda: build(kind), used)
    profiles = profiles or [NodeProfile(seconds_per_step=each) for each in speeds]
    for number, profile in enumerate(profiles):
        scene.add_node(f"n{number}", batches(number), steps=steps, profile=profile)
    names = [f"n{number}" for number in range(len(profiles))]
    master = scene.add_master(expected=names)
    with playing(scene):
        pass
    return scene, master


def final_of(master):
    return load_file(master.report.model_file)


def publications(master):
    return [each for each in master.events if each["event"] == "publication" and each["deltas"]]


def textbook(kind, *, nodes=4, rounds=5, every=4, reset=True):
    """Synchronous DiLoCo: all train, all send, one outer step, all go on from it."""
    names = [f"n{number}" for number in range(nodes)]
    moments = []
    for number in range(1, rounds + 1):
        for name in names:
            moments += [("step", name)] * every
            moments += [("send", name, number * every), ("land", name)]
        moments.append(("merge", tuple((n, number * every, number - 1) for n in names)))
        moments += [("install", name, number) for name in names]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    published, _ = reference.play(
        moments,
        models={name: build(kind) for name in names},
        batches={name: batches(number) for number, name in enumerate(names)},
        optimizer=lambda model: adamw(model, lr=0.05),
        outer_lr=0.7,
        outer_momentum=0.9,
        reset=reset,
    )
    torch.set_num_threads(before)
    return published[-1]


def assert_equal(found, expected):
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("install", ["rebase", "replace", "boundary"])
def test_synchronous_is_the_textbook_loop_bit_for_bit(install, reset, tmp_path):
    used = settings(merge="synchronous", install=install, reset_inner_optimizer=reset)
    _, master = play(tmp_path, used, UNEQUAL)
    assert [len(deltas) for deltas in rounds_of(master)] == [4] * 5
    assert_equal(final_of(master), textbook(Plain, reset=reset))


def test_synchronous_averages_statistics_as_the_textbook_loop(tmp_path):
    _, master = play(tmp_path, settings(merge="synchronous"), EQUAL, kind=Counting)
    expected = textbook(Counting)
    assert_equal(final_of(master), expected)


def test_a_synchronous_round_takes_as_long_as_its_slowest_node(tmp_path):
    _, master = play(tmp_path, settings(merge="synchronous"), UNEQUAL)
    times = [each["at"] / 1e6 for each in publications(master)]
    for number, time in enumerate(times, start=1):
        assert number * 12.0 <= time < number * (12.0 + 0.1 + 0.1 + 0.1)  # polls and the merge


@pytest.mark.parametrize("grace", [0.0, 2.0])
def test_with_equal_speeds_and_a_grace_asynchronous_equals_synchronous(grace, tmp_path):
    used = settings(merge="grace", grace_seconds=grace, wait_for_merge=True)
    _, synchronous = play(tmp_path / "s", settings(merge="synchronous"), EQUAL)
    _, asynchronous = play(tmp_path / "a", used, EQUAL)
    assert [len(deltas) for deltas in rounds_of(asynchronous)] == [4] * 5
    assert_equal(final_of(asynchronous), final_of(synchronous))


def test_a_grace_that_covers_small_differences_makes_it_equal_too(tmp_path):
    speeds = (1.0, 1.02, 1.05, 1.1)
    used = settings(merge="grace", grace_seconds=0.5, wait_for_merge=True)
    _, master = play(tmp_path, used, speeds)
    assert_equal(final_of(master), textbook(Plain))


def test_without_the_grace_small_differences_split_the_rounds(tmp_path):
    used = settings(merge="grace", grace_seconds=0.0, wait_for_merge=True)
    _, master = play(tmp_path, used, (1.0, 1.02, 1.05, 1.1))
    assert [len(deltas) for deltas in rounds_of(master)][:3] == [2, 1, 1]


def test_the_master_wakes_when_the_grace_is_over_though_nobody_sends(tmp_path):
    used = settings(merge="grace", grace_seconds=2.345, inner_steps=4)
    _, master = play(tmp_path, used, (1.0,), steps=8)
    first, *_ = publications(master)
    (delta,) = first["deltas"]
    # sent at 4.0 s, seen at the next poll, then the grace, and the merge takes 0.1 s
    assert first["at"] == 4_000_000 + 100_000 + 2_345_000 + 100_000
    assert delta["waited_seconds"] == pytest.approx(2.445)


def test_a_quorum_merges_when_enough_wait(tmp_path):
    used = settings(merge="quorum", min_deltas=3, max_wait=1000.0)
    _, master = play(tmp_path, used, UNEQUAL)
    rounds = rounds_of(master)
    assert all(len(deltas) >= 3 for deltas in rounds)
    assert sum(map(len, rounds)) == 20
    first, second, *_ = publications(master)
    assert [each["waited_seconds"] for each in first["deltas"]] == [4.1, 0.1, 2.9, 0.1]
    assert (first["at"], second["at"]) == (8_200_000, 12_200_000)


def test_a_quorum_that_is_not_reached_merges_after_the_longest_wait(tmp_path):
    used = settings(merge="quorum", min_deltas=9, max_wait=2.0, inner_steps=4)
    _, master = play(tmp_path, used, (1.0,), steps=12)
    assert [each["at"] for each in publications(master)][:2] == [6_200_000, 10_200_000]


@pytest.mark.parametrize("merge", ["grace", "quorum", "synchronous"])
def test_the_end_of_a_run_merges_what_waits_whatever_the_policy(merge, tmp_path):
    used = settings(merge=merge, grace_seconds=1e6, min_deltas=99, max_wait=1e6)
    _, master = play(tmp_path, used, EQUAL, steps=7)
    assert master.report.stop_reason == "every node is done"
    for node_id in ("n0", "n1", "n2", "n3"):
        (account,) = master.report.accounts[node_id].values()
        assert account["merged"] == "1-7"


def test_a_run_of_waiting_nodes_ends_when_the_last_of_them_has_said_goodbye(tmp_path):
    scene = Scene(tmp_path, lambda: build(Plain), settings(merge="synchronous"))
    for number, speed in enumerate(UNEQUAL):
        scene.add_node(f"n{number}", batches(number), profile=NodeProfile(seconds_per_step=speed))
    limits = RunLimits(max_tokens=4 * 4 * 8)  # two rounds
    master = scene.add_master(expected=["n0", "n1", "n2", "n3"], limits=limits)
    with playing(scene):
        pass
    assert [len(deltas) for deltas in rounds_of(master)] == [4, 4]
    assert master.events[-1]["at"] < 26_000_000


def test_a_node_that_died_is_not_waited_for_after_its_timeout(tmp_path):
    profiles = [NodeProfile(), NodeProfile(), NodeProfile(crash_at=6.0)]
    used = settings(merge="synchronous", node_timeout=30.0)
    _, master = play(tmp_path, used, (), profiles=profiles)
    assert master.report.stop_reason == "every node is done"
    sizes = [len(deltas) for deltas in rounds_of(master)]
    assert sizes == [3, 2, 2, 2, 2]
    assert publications(master)[1]["at"] >= 30_000_000


@pytest.mark.parametrize("merge", ["poll", "synchronous"])
def test_nodes_that_wait_go_on_when_all_they_sent_is_refused(merge, tmp_path):
    used = settings(merge=merge, wait_for_merge=True, max_delta_norm=1e-6)
    _, master = play(tmp_path, used, UNEQUAL)
    assert (master.report.outer_steps, len(master.report.rejected)) == (0, 20)


def test_nodes_that_wait_for_long_show_that_they_live(tmp_path):
    used = settings(merge="synchronous", node_timeout=12.0)
    scene, master = play(tmp_path, used, (0.1, 5.0), steps=8)
    assert [len(deltas) for deltas in rounds_of(master)] == [2, 2]
    fast = scene.parts["n0"].report
    assert fast.commits > 4  # two deltas, the claim and the farewell


def test_a_node_ends_at_its_time_limit_though_it_waits_for_a_merge(tmp_path):
    scene = Scene(tmp_path, lambda: build(Plain), settings(merge="synchronous"))
    limits = RunLimits(max_seconds=10.0)
    for number, speed in enumerate((0.5, 30.0)):
        profile = NodeProfile(seconds_per_step=speed)
        scene.add_node(f"n{number}", batches(number), profile=profile, limits=limits)
    scene.add_master(expected=["n0", "n1"])
    with playing(scene):
        pass
    stopping = [e for e in scene.parts["n0"].events if e["event"] == "node_stopping"]
    assert stopping[0]["at"] == 10_000_000


def test_waiting_costs_no_looks_in_virtual_time(tmp_path):
    used = settings(merge="synchronous", poll_interval=0.001)
    scene, master = play(tmp_path, used, (1.0, 3.0))
    assert master.report.requests < 400
    assert scene.parts["n0"].report.requests < 200
