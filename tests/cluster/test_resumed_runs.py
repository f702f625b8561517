"""Virtual runs that stop and go on, and what their machines take with them."""

import json

import pytest
from small_runs import play

import ray_diloco
from ray_diloco.errors import ConfigError

RUN = ("hub=embedded", "cluster.nodes=2", "cluster.master_trains=false", "run.max_steps=30")
CRASH = "{crash_at: 3.05, recover_after: 1.5}"


def test_a_virtual_run_goes_on_in_its_time_and_is_told_as_a_whole(tmp_path):
    first, told = play(tmp_path, *RUN)
    second, events = play(tmp_path, *RUN, "run.max_steps=50", f"run.resume={tmp_path}")
    assert events[: len(told)] == told
    later = [each for each in events[len(told) :] if each["event"] != "evaluation"]
    assert min(each["at"] for each in later) >= max(each["at"] for each in told)
    assert second["run_seconds"] > first["run_seconds"]
    assert [each["local_steps"] for each in second["nodes"].values()] == [50, 50]
    assert (second["range_sum"], second["dropped_local_steps"]) == ("ok", 0)
    assert second["initial_eval_loss"] == first["initial_eval_loss"]
    assert second["tokens"] == second["tokens_merged"] == 5 * first["tokens"] // 3
    assert second["deltas_merged"] == 2 * 5
    merged = [
        each for event in events if event["event"] == "publication" for each in event["deltas"]
    ]
    assert len(merged) == second["deltas_merged"]
    assert second["bytes_up"] > first["bytes_up"]
    assert json.loads((tmp_path / "result.1.json").read_text()) == first


def test_a_run_without_checkpoints_goes_on_again_and_again(tmp_path):
    for steps in (30, 40, 50):
        words = ["checkpoint.keep_last=0", f"run.max_steps={steps}"]
        again = [] if steps == 30 else [f"run.resume={tmp_path}"]
        numbers, _ = play(tmp_path, *RUN, *words, *again)
    assert (numbers["status"], numbers["range_sum"]) == ("done", "ok")
    assert [each["local_steps"] for each in numbers["nodes"].values()] == [50, 50]
    assert numbers["tokens"] == numbers["tokens_merged"]


def test_a_node_with_nothing_left_to_do_is_not_waited_for(tmp_path):
    words = ["debug=default", "run.debug=false", "data=synthetic", "run.report=false"]
    first = ray_diloco.run([*words, "data.synthetic_bytes=20000"], folder=tmp_path)
    second = ray_diloco.run([f"run.resume={tmp_path}", "run.max_steps=10"])
    assert second.numbers["range_sum"] == "ok"
    assert second.numbers["run_seconds"] < first.numbers["run_seconds"] + 5


FAILING = """
import pathlib
import torch

def batches(split, node_index):
    mended = pathlib.Path(__file__).with_name("mended").exists()
    count = 7 if split == "train" and node_index == 1 and not mended else 100
    for _ in range(count):
        yield torch.randint(0, 256, (2, 9), generator=torch.Generator().manual_seed(count))
    raise OSError("the data are gone")
"""


@pytest.mark.parametrize("kept", [0, 2])
def test_what_a_node_that_failed_has_lost_is_counted_when_it_goes_on(kept, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"failing{kept}.py").write_text(FAILING)
    words = [
        *("debug=default", "run.debug=false", "run.report=false", "diloco.inner_steps=5"),
        *("data=custom", f"data.allow_targets=[failing{kept}]"),
        *(f"+data.custom._target_=failing{kept}.batches", f"checkpoint.keep_last={kept}"),
    ]
    first = ray_diloco.run(words, folder=tmp_path / "run")
    assert first.status == "failed"
    assert "the data are gone" in first.numbers["error"]
    assert first.numbers["crash_losses"] == {}  # what it trained since may be in a checkpoint
    (tmp_path / "mended").touch()
    told = ray_diloco.run([f"run.resume={tmp_path / 'run'}"]).numbers
    assert (told["status"], told["range_sum"]) == ("done", "ok")
    gone, again = (0, {"n1": 2}) if kept else (2, {})
    assert (told["dropped_local_steps"], told["trained_again"]) == (gone, again)
    assert told["crash_losses"] == ({"n1": gone} if gone else {})
    trained = {node_id: node["local_steps"] for node_id, node in told["nodes"].items()}
    assert trained == {"n0": 12, "n1": 12}
    assert told["tokens"] == sum(node["tokens"] for node in told["nodes"].values())
    assert told["tokens"] - told["tokens_merged"] == gone * 2 * 8


def test_seconds_are_those_of_the_whole_run(tmp_path):
    limits = ("run.max_steps=null", "inner.schedule_steps=100")
    play(tmp_path, *RUN, *limits, "run.max_seconds=4")
    longer = ("run.max_seconds=8", f"run.resume={tmp_path}")
    numbers, _ = play(tmp_path, *RUN, *limits, *longer)
    assert numbers["nodes"]["n0"]["local_steps"] < 85  # 0.1 s a step
    assert numbers["run_seconds"] < 12


def test_other_nodes_are_refused_before_anything_starts(tmp_path):
    first, _ = play(tmp_path, *RUN)
    before = (tmp_path / "events.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=r"cluster\.nodes=3: expected 2"):
        play(tmp_path, *RUN, "cluster.nodes=3", "run.max_steps=50", f"run.resume={tmp_path}")
    assert (tmp_path / "events.jsonl").read_bytes() == before
    assert json.loads((tmp_path / "result.json").read_text()) == first


@pytest.mark.parametrize("every", ["null", "4"])
def test_what_a_crash_takes_with_it_is_counted(every, tmp_path):
    crash = (f"+cluster.overrides.n1={CRASH}", f"checkpoint.every_steps={every}")
    numbers, events = play(tmp_path, *RUN, *crash)
    (death,) = [each for each in events if each["event"] == "crashed"]
    (_, reborn) = [
        each for each in events if each["event"] == "node_started" and each["participant"] == "n1"
    ]
    lost = death["local_step"] - reborn["resumed"]
    assert (death["at"], reborn["at"]) == (3_050_000, 4_550_000)
    assert 0 < lost <= 10
    assert (numbers["crash_losses"], numbers["trained_again"]) == ({}, {"n1": lost})
    assert (numbers["dropped_local_steps"], numbers["range_sum"]) == (0, "ok")
    assert numbers["nodes"]["n1"]["local_steps"] == 30


def test_what_a_machine_takes_with_it_for_good_is_counted(tmp_path):
    numbers, events = play(tmp_path, *RUN, "+cluster.overrides.n1={crash_at: 3.05}")
    (death,) = [each for each in events if each["event"] == "crashed"]
    merged = [
        each["covers"]
        for event in events
        if event["event"] == "publication"
        for each in event["deltas"]
        if each["node"] == "n1"
    ]
    assert merged == ["1-10"]
    assert numbers["crash_losses"] == {"n1": death["local_step"] - 10}
    assert numbers["dropped_local_steps"] == death["local_step"] - 10
    assert list(numbers["nodes"]) == ["n0"]
