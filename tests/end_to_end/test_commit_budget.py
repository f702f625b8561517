"""A run that wants more commits than it may have, on a hub that counts them, in virtual time."""

import json
from collections import Counter
from pathlib import Path

import pytest

from ray_diloco.experiment.reading import read_config
from ray_diloco.experiment.run import run

HOURS = 2


@pytest.mark.slow
def test_a_strict_hub_never_has_to_refuse_and_no_step_is_lost(tmp_path: Path) -> None:
    config = read_config(
        {
            "run": {"max_seconds": HOURS * 3600.0},
            "time": {"kind": "virtual"},
            "engine": {"name": "inproc"},
            "cluster": {"nodes": 4, "profiles": [{"seconds_per_step": 30.0}]},
            "diloco": {"inner_steps": 2, "poll_interval": 30.0},
            "data": {"name": "synthetic", "synthetic_bytes": 50_000},
            "model": {"name": "mlp"},
            "inner": {"schedule": "constant", "warmup_steps": 5},
            "hub": {"strict": True},
        }
    )
    result = run(config, tmp_path)
    numbers = result.numbers
    assert (numbers["status"], numbers["range_sum"]) == ("done", "ok")
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    told = Counter(event["event"] for event in events)
    assert told["delta_refused"] == 0
    assert told["boundary_skipped"] > 100
    assert {e["reason"] for e in events if e["event"] == "boundary_skipped"} == {"commit budget"}
    # on top of the budget: a burst of 2 for each of the 5 who commit, a claim, a goodbye and a last
    # delta for each of the 4 nodes, and the master's first and last publication
    assert 60 * HOURS < numbers["commits"] <= 100 * HOURS + 2 * 5 + 3 * 4 + 2
    deltas = Counter(event["participant"] for event in events if event["event"] == "delta_landed")
    assert max(deltas.values()) - min(deltas.values()) <= 2
    assert told["publication"] >= 20 * HOURS - 2
