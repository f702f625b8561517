"""Whole runs against a separate calculation of when everything happens."""

import json
from collections import Counter
from datetime import datetime, timedelta
from fractions import Fraction

import pytest
from event_list import EventList, Machine, Rules
from small_runs import moments, play

from ray_diloco.protocol.clock import micros

TOLD = {
    "upload_started": ("at", "local_step"),
    "boundary_skipped": ("at", "local_step"),
    "global_fetched": ("began", "outer_step"),
    "install": ("at", "outer_step"),
}
"""Of each event of a node: when it was, and what counts of it."""


def mbps(rate):
    """Bytes per microsecond."""
    return Fraction(rate) * 1_000_000 / 8 / 1_000_000


def written(machine):
    """The machine as the settings name it."""
    told = {"seconds_per_step": machine.step / 1e6, "latency_ms": machine.latency / 1e3}
    for name, rate in (("up_mbps", machine.up), ("down_mbps", machine.down)):
        if rate is not None:
            told[name] = float(rate * 8)
    if machine.join:
        told["join_at"] = machine.join / 1e6
    if machine.gone:
        told["crash_at"] = machine.gone[0] / 1e6
        told["recover_after"] = (machine.gone[1] - machine.gone[0]) / 1e6
    return "{" + ", ".join(f"{name}: {value!r}" for name, value in told.items()) + "}"


def both(folder, machines, *overrides, **rules):
    """The run's numbers and events, and what the list of events says of the same run."""
    numbers, events = play(
        folder,
        f"cluster.nodes={len(machines)}",
        "cluster.master_trains=false",
        f"cluster.profiles=[{', '.join(written(each) for each in machines.values())}]",
        *overrides,
    )
    deltas = [each for event in events for each in event.get("deltas", ())]
    listed = EventList(
        Rules(
            inner_steps=10,
            poll=micros(1),
            model_size=(folder / "model.safetensors").stat().st_size,
            delta_sizes={(each["node"], each["local_step"]): each["bytes"] for each in deltas},
            **rules,
        ),
        machines,
    ).play()
    return numbers, events, listed


def assert_same(numbers, events, listed):
    """Rounds, staleness, boundaries, installations, utilisation, all to the microsecond."""
    publications = [each for each in events if each["event"] == "publication"]
    *rounds, closing = publications
    assert listed.rounds == [
        (each["at"], [(d["node"], d["local_step"], d["staleness"]) for d in each["deltas"]])
        for each in rounds
    ]
    assert (closing["at"], closing["deltas"]) == (listed.closed_at, [])
    ages = Counter(str(age) for _, deltas in listed.rounds for *_, age in deltas)
    assert numbers["staleness"] == ages
    assert numbers["outer_steps"] == listed.version
    for name, node in listed.nodes.items():
        for kind, (at, what) in TOLD.items():
            found = [
                (each[at], each[what])
                for each in events
                if each["event"] == kind and each["participant"] == name
            ]
            assert found == node.told[kind], (name, kind)
        busy = node.busy / (node.last_step - node.first_step)
        assert numbers["nodes"][name]["utilisation"] == pytest.approx(busy, rel=1e-12)
        assert numbers["nodes"][name]["bytes_up"] == bytes_up(numbers, events, listed, node)


def bytes_up(numbers, events, listed, node):
    """Of the node's last life: its deltas, and what it said when it came and when it went."""
    started = next(
        each
        for each in reversed(events)
        if each["event"] == "node_started" and each["participant"] == node.name
    )
    began = node.machine.gone[1] if node.machine.gone else node.machine.join
    claims = [
        json.dumps(
            {
                "last_local_step": last,
                "nonce": started["nonce"],
                "run_id": numbers["run_id"],
                "started": (
                    datetime.fromisoformat("2000-01-01T00:00:00+00:00")
                    + timedelta(microseconds=began)
                ).isoformat(timespec="microseconds"),
                "state": state,
            },
            indent=2,
        )
        for state, last in (("active", node.claimed_from), ("done", node.steps))
    ]
    sizes = listed.rules.delta_sizes
    return sum(len(each) + 1 for each in claims) + sum(sizes[job[:2]] for job in node.sent)


def test_unequal_nodes_that_wait_for_slow_uploads_keep_to_the_list(tmp_path):
    machines = {
        "n0": Machine(step=100_000, latency=30_000, up=mbps("0.08"), down=mbps("0.16")),
        "n1": Machine(step=230_000, latency=45_000, up=mbps("0.05"), down=mbps("0.1")),
    }
    found = both(
        tmp_path,
        machines,
        "run.max_steps=40",
        "diloco.async_delta_upload=false",
        steps=40,
        merge=100_000,
        blocking=True,
    )
    assert_same(*found)
    numbers, _, listed = found
    assert 0.3 < numbers["nodes"]["n0"]["utilisation"] < numbers["nodes"]["n1"]["utilisation"] < 0.8
    assert listed.version > 5


def test_four_nodes_behind_one_link_of_the_hub_keep_to_the_list(tmp_path):
    machines = {
        f"n{number}": Machine(step=step, latency=10_000 * number)
        for number, step in enumerate((100_000, 130_000, 200_000, 310_000))
    }
    found = both(
        tmp_path,
        machines,
        "run.max_steps=40",
        "cluster.hub_up_mbps=0.2",
        "cluster.master_seconds=0.05",
        steps=40,
        merge=50_000,
        hub=mbps("0.2"),
    )
    assert_same(*found)
    numbers, events, listed = found
    assert moments(events, "boundary_skipped", "n0")
    assert max(map(int, numbers["staleness"])) > 2
    assert any(len(deltas) > 1 for _, deltas in listed.rounds)


def test_a_late_node_and_one_that_crashes_and_recovers_keep_to_the_list(tmp_path):
    slow = {"up": mbps("0.1"), "down": mbps("0.4")}
    machines = {
        "n0": Machine(step=100_000, **slow),
        "n1": Machine(step=170_000, join=2_340_000, latency=20_000, **slow),
        "n2": Machine(step=150_000, gone=(5_770_000, 9_130_000), **slow),
    }
    found = both(tmp_path, machines, "run.max_steps=70", steps=70, merge=100_000)
    assert_same(*found)
    numbers, events, _ = found
    assert numbers["crashes"] == {"n2": 1}
    assert len(moments(events, "upload_resumed", "n2")) == 1
    assert moments(events, "install", "n1")[0] > micros(2.34)
