"""Whole runs in virtual time, through the real nodes, master and hub."""

import json
import random
import sys
import threading
from contextlib import contextmanager

import pytest
from small_runs import UNEQUAL, configured, moments, play

from ray_diloco.cluster.launch import Stage
from ray_diloco.experiment.build import identify
from ray_diloco.experiment.launch import open_stage
from ray_diloco.protocol.clock import micros
from ray_diloco.timing.virtual import VirtualClock


def same(numbers):
    """What two runs of one configuration have in common."""
    apart = ("versions", "repo_id", "overrides")
    common = {
        key: value
        for key, value in numbers.items()
        if not key.startswith("wall_") and key not in apart
    }
    return common | {"sessions": [same(each) for each in numbers.get("sessions", ())]}


def test_two_nodes_on_one_link_come_out_to_the_microsecond(tmp_path):
    link = "{up_mbps: 0.08, down_mbps: 0.16, latency_ms: 30}"
    numbers, events = play(
        tmp_path,
        "cluster.nodes=2",
        "cluster.master_trains=false",
        "cluster.master_seconds=0",
        "run.max_steps=20",
        f"+cluster.overrides.n0={link}",
        f"+cluster.overrides.n1={link}",
    )
    publications = [event for event in events if event["event"] == "publication"]
    deltas = [(each, event) for event in publications for each in event["deltas"]]
    up = {(each["node"], each["local_step"]): 30_000 + each["bytes"] * 100 for each, _ in deltas}
    down = 30_000 + (tmp_path / "model.safetensors").stat().st_size * 50
    assert all(micros(1) < each < micros(2) for each in up.values())

    # Both ask at 0 for the global that the master has published at 0, and train from its arrival:
    # n0 steps of 0.1 s, n1 of 0.2 s, a boundary every 10 steps. n0 reaches its second boundary, and
    # its end, while its first delta is still on its way, so it sends the second after that.
    assert moments(events, "install", "n0")[0] == moments(events, "install", "n1")[0] == down
    first, final = down + micros(1), down + micros(1) + up["n0", 10]
    assert moments(events, "boundary_skipped", "n0") == [down + micros(2)]
    assert moments(events, "upload_started", "n0") == [first, final]
    assert moments(events, "upload_started", "n1") == [down + micros(2), down + micros(4)]
    landed = {
        ("n0", 10): first + up["n0", 10],
        ("n0", 20): final + up["n0", 20],
        ("n1", 10): down + micros(2) + up["n1", 10],
        ("n1", 20): down + micros(4) + up["n1", 20],
    }
    assert moments(events, "delta_landed", "n0") == [landed["n0", 10], landed["n0", 20]]

    # The master looks every second from 0, so each delta is in the global of the next second, and
    # the second after the last one closes the run.
    seconds = {key: -(-at // micros(1)) * micros(1) for key, at in landed.items()}
    assert seconds == {(each["node"], each["local_step"]): event["at"] for each, event in deltas}
    rounds = sorted(set(seconds.values()))
    assert [event["at"] for event in publications] == [*rounds, rounds[-1] + micros(1)]
    assert numbers["outer_steps"] == len(rounds)


def test_a_node_twice_as_fast_sends_twice_as_many_deltas(tmp_path):
    numbers, _ = play(
        tmp_path,
        "cluster.nodes=2",
        "cluster.master_trains=false",
        "run.max_steps=null",
        "run.max_seconds=16",
        "inner.schedule_steps=160",
        "cluster.profiles=[{seconds_per_step: 0.1}, {seconds_per_step: 0.2}]",
    )
    fast, slow = numbers["nodes"]["n0"], numbers["nodes"]["n1"]
    assert (fast["deltas_landed"], slow["deltas_landed"]) == (16, 8)
    assert (fast["local_steps"], slow["local_steps"]) == (160, 80)
    assert fast["utilisation"] == slow["utilisation"] == 1.0


def disturbed(seed):
    """A stage whose participants start late and take their turns at random."""

    def stage(config, identity):
        played_on = Stage(
            config.ray,
            engine="inproc",
            virtual=True,
            header=f"{identity.config_hash} {config.run.threads_per_node}",
            seed=config.run.seed,
        )
        rng, pause = random.Random(seed), threading.Event()
        played_on._clock = VirtualClock(
            (),
            header=f"{identity.config_hash} {config.run.threads_per_node}",
            yield_to_others=lambda: pause.wait(rng.random() * 0.004),
        )
        return played_on

    return stage


@contextmanager
def busy_cores():
    """Two threads that want the interpreter all the time, which changes hands often."""
    ended = threading.Event()
    usual = sys.getswitchinterval()
    sys.setswitchinterval(usual / 20)

    def burn():
        while not ended.is_set():
            sum(range(10_000))

    threads = [threading.Thread(target=burn, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(usual)


@pytest.mark.slow
def test_five_runs_are_the_same_run_however_they_are_disturbed(tmp_path):
    plain, events = play(tmp_path / "0", *UNEQUAL)
    assert plain["trace_hash"]
    assert plain["crashes"] == {"n2": 1}
    models = [event["model_sha256"] for event in events if event["event"] == "publication"]
    for number in range(1, 5):
        with busy_cores():
            again, told = play(tmp_path / str(number), *UNEQUAL, stage=disturbed(number))
        assert same(again) == same(plain)
        assert models == [e["model_sha256"] for e in told if e["event"] == "publication"]


def test_the_trace_hash_covers_the_threads_and_nothing_of_the_machine(tmp_path):
    def empty(*overrides):
        config = configured(*overrides)
        with open_stage(config, identify(config, tmp_path)) as stage:
            return stage.trace_hash()

    assert empty() == empty("ray.num_cpus=8", "run.log_level=DEBUG") is not None
    assert len({empty(), empty("run.threads_per_node=2"), empty("run.seed=1")}) == 3


def without_wall(events):
    return sorted(json.dumps({k: v for k, v in e.items() if k != "wall_at"}) for e in events)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("cpus", [1, 8])
def test_actors_play_the_very_run_that_threads_play(tmp_path, cpus):
    hub = ("hub=embedded", *UNEQUAL)
    threads, told = play(tmp_path / "threads", *hub)
    actors, events = play(tmp_path / "actors", *hub, "engine=ray", f"ray.num_cpus={cpus}")
    assert same(actors) == same(threads)
    assert without_wall(events) == without_wall(told)
    commits = [event["commit"] for event in events if event["event"] == "publication"]
    assert len(set(commits)) == len(commits) > 3
