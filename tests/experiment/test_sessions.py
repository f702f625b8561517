"""A run that is resumed: its result stands for all its sessions, and nothing is lost."""

import json
import os
import re
import signal

import pytest
from scripted import ScriptedEngine, ScriptedStage

from ray_diloco.cluster.engine import View
from ray_diloco.errors import ConfigError, UsageError
from ray_diloco.experiment.live_status import StatusFile
from ray_diloco.experiment.progress import NoProgress
from ray_diloco.experiment.run import run
from ray_diloco.protocol.run import Evaluation, RunLimits
from ray_diloco.timing.wall import WallClock

LONGER = "run.max_steps=20"


@pytest.fixture
def play(small, tmp_path):
    """Run, or go on, in one folder; gives the result's numbers."""

    def playing(*overrides: str, engine: ScriptedEngine | None = None) -> dict:
        engine = engine or ScriptedEngine()
        config = small("hub=embedded", *overrides)
        return run(config, tmp_path, stage=ScriptedStage(engine)).numbers

    return playing


@pytest.fixture
def resume(play, tmp_path):
    def resuming(*overrides: str, engine: ScriptedEngine | None = None) -> dict:
        return play(f"run.resume={tmp_path}", *overrides, engine=engine)

    return resuming


def evaluations(*losses: float) -> dict:
    """Fields of a master's report, one for each outer step in which something was evaluated."""
    told = [
        Evaluation(outer_step=2 * number, loss=loss, tokens_total=2400 * number, at=number)
        for number, loss in enumerate(losses)
    ]
    return {"evaluations": told, "outer_steps": told[-1].outer_step}


def strict(path) -> dict:
    """JSON as it is defined, which knows no NaN."""

    def refuse(name: str) -> None:
        raise AssertionError(name)

    return json.loads(path.read_text(), parse_constant=refuse)


def test_a_resumed_run_is_told_as_a_whole(play, resume, tmp_path):
    first = play()
    later = evaluations(5.5, 3.25, 2.0)
    later["evaluations"] = later["evaluations"][1:]  # a resumed master knows nothing of the start
    second = resume(LONGER, engine=ScriptedEngine(master=later))
    assert (first["initial_eval_loss"], first["eval_loss"]) == (5.5, 3.25)
    assert (second["initial_eval_loss"], second["eval_loss"]) == (5.5, 2.0)
    assert (first["tokens"], second["tokens"]) == (2 * 1200, 2 * 2000)
    assert second["nodes"]["n0"]["local_steps"] == 20
    for name in ("bytes_up", "bytes_down", "commits", "deltas_merged", "conflicts"):
        assert second[name] == 2 * first[name], name
    assert second["nodes"]["n0"]["commits"] == 2 * first["nodes"]["n0"]["commits"]
    assert second["staleness"] == {"0": 8, "1": 4}
    assert second["nodes"]["n0"]["deltas_landed"] == first["nodes"]["n0"]["deltas_landed"]
    assert second["wall_seconds"] >= first["wall_seconds"]
    assert [each["session"] for each in second["sessions"]] == [1, 2]
    assert second["sessions"][0] == first["sessions"][0]


def test_what_the_result_said_before_stays_beside_it(play, resume, tmp_path):
    first = play()
    second = resume(LONGER)
    third = resume("run.max_steps=30")
    assert strict(tmp_path / "result.1.json") == first
    assert strict(tmp_path / "result.2.json") == second
    assert strict(tmp_path / "result.json") == third
    assert len(third["sessions"]) == 3


def test_a_runs_time_goes_on_where_it_ended(play, resume):
    first, engine = play(), ScriptedEngine()
    second = resume(LONGER, engine=engine)
    assert first["run_seconds"] == 1.2
    assert {plan.run.since for plan in (*engine.nodes, engine.master)} == {1_500_000}  # an event's
    assert second["sessions"][1]["began_seconds"] == 1.5
    assert second["run_seconds"] == 3.5


def test_a_finished_run_is_not_resumed_and_stays_as_it_is(play, resume, tmp_path):
    play()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    engine = ScriptedEngine()
    with pytest.raises(ConfigError, match=r"this run is finished \(run\.max_steps=12 reached"):
        resume(engine=engine)
    assert engine.nodes == ()
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before


def test_a_finished_run_that_has_not_sent_all_goes_on(play, resume):
    play(engine=ScriptedEngine(node={"unsent": "11-12"}, lost="1-10"))
    assert resume()["unsent_local_steps"] == 0


def interrupt(looks: int) -> None:
    """Like a second Ctrl-C, which lets nobody say a word."""
    if looks == 3:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)


def test_a_session_that_was_killed_counts_with_what_the_others_know(play, resume, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        play(engine=ScriptedEngine(on_look=interrupt))
    assert not (tmp_path / "result.json").exists()
    numbers = resume()
    assert [each["status"] for each in numbers["sessions"]] == ["killed", "done"]
    assert numbers["sessions"][1]["began_seconds"] == 0.2  # the last event that was kept
    assert numbers["nodes"]["n0"]["local_steps"] == 12
    assert numbers["status"] == "done"


@pytest.mark.parametrize(
    ("nonce", "steps", "landed"),
    [
        ("first", 12 + 7, 3 + 1),  # another incarnation than the one that goes on
        ("nonce-n0", 12, 3),  # the one that goes on counts on from there
    ],
)
def test_what_was_merged_in_a_session_that_was_killed_counts(
    play, resume, tmp_path, nonce, steps, landed
):
    with pytest.raises(KeyboardInterrupt):
        play(engine=ScriptedEngine(on_look=interrupt))
    events = tmp_path / "events.jsonl"
    told = json.loads(events.read_text().splitlines()[-1])
    delta = {"node": "n0", "nonce": nonce, "covers": "1-7", "tokens": 700, "staleness": 0}
    publication = told | {"event": "publication", "deltas": [delta]}
    with events.open("a") as file:
        file.write(json.dumps(publication) + "\n")
    plain = resume()
    n0 = plain["nodes"]["n0"]
    assert (n0["local_steps"], n0["deltas_landed"]) == (steps, landed)
    assert n0["tokens"] == 100 * steps
    assert plain["tokens"] == sum(each["tokens"] for each in plain["nodes"].values())


def test_what_died_in_a_session_that_was_killed_is_told_with_its_losses(play, resume, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        play(engine=ScriptedEngine(on_look=interrupt))
    events = tmp_path / "events.jsonl"
    told = {**json.loads(events.read_text().splitlines()[-1]), "participant": "n0"}
    lost = {"event": "crashed", "local_step": 5, "reason": "its machine has gone"}
    begun = {"event": "node_started", "nonce": "first", "first_step": 0, "resumed": None}
    again = {"event": "node_started", "nonce": "second", "first_step": 9, "resumed": None}
    with events.open("a") as file:
        file.writelines(json.dumps(told | each) + "\n" for each in (begun, lost, again))
    numbers = resume()
    assert numbers["restarts"] == {"n0": ["its machine has gone"]}
    assert (numbers["crash_losses"], numbers["dropped_local_steps"]) == ({"n0": 5}, 5)


class GoingOn(ScriptedEngine):
    """Node n0 begins anew, as one does that has no checkpoint."""

    def _events(self, now: int) -> tuple[dict, ...]:
        begun = {"event": "node_started", "participant": "n0", "at": now}
        again = begun | {"nonce": "nonce-n0", "first_step": 9, "resumed": None}
        return (*([again] if self.looks == 1 else []), *super()._events(now))


@pytest.mark.parametrize(
    ("word", "steps", "tokens"),
    [
        ({"event": "node_failed", "local_step": 7, "tokens": 700}, 7, 700),
        ({"event": "upload_started", "local_step": 5, "covers": "1-5", "tokens": 500}, 5, 500),
    ],
)
def test_what_nobody_was_left_to_tell_of_is_lost_and_counts(
    play, resume, tmp_path, word, steps, tokens
):
    with pytest.raises(KeyboardInterrupt):
        play(engine=ScriptedEngine(on_look=interrupt))
    events = tmp_path / "events.jsonl"
    told = {**json.loads(events.read_text().splitlines()[-1]), "participant": "n0"}
    begun = {"event": "node_started", "nonce": "first", "first_step": 0, "resumed": None}
    with events.open("a") as file:
        file.writelines(json.dumps(told | each) + "\n" for each in (begun, word))
    numbers = resume(engine=GoingOn())
    assert (numbers["crash_losses"], numbers["trained_again"]) == ({"n0": steps}, {})
    assert numbers["nodes"]["n0"]["local_steps"] == 12 + steps
    assert numbers["nodes"]["n0"]["tokens"] == 1200 + tokens


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("result.json", '"sessions": [', '"sessions": 5, "x": ['),
        ("result.json", '"session": 1', '"session": null'),
        ("result.json", '"ended_seconds": ', '"ended_seconds": "late", "x": '),
        ("events.jsonl", '"at": ', '"at": "soon", "x": '),
        ("sessions.jsonl", '"wall_at": "', '"wall_at": "at dawn '),
        ("events.jsonl", '"wall_at": "', '"when": "'),
    ],
)
def test_a_broken_file_of_the_run_is_named(play, resume, tmp_path, file, old, new):
    play()
    if file != "result.json":
        (tmp_path / "result.json").unlink()
    path = tmp_path / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(UsageError, match=re.escape(file)):
        resume(LONGER)


def test_a_session_without_its_line_is_told(play, resume, tmp_path):
    play()
    (tmp_path / "sessions.jsonl").unlink()
    with pytest.raises(UsageError, match=r"sessions\.jsonl: expected a line for each session"):
        resume(LONGER)


@pytest.mark.parametrize(
    ("override", "was"),
    [
        ("cluster.nodes=3", "2"),
        ("cluster.node_ids=[a,b]", r"\[\]"),
        ("data.shard=dirichlet", "'iid'"),
        ("data.synthetic_seed=9", "0"),
        ("diloco.inner_steps=3", "4"),
        ("model.width=64", "None"),
        ("run.seed=1", "0"),
        ("inner.name=sgd", "'adamw'"),
    ],
)
def test_another_run_under_the_same_name_is_refused_before_anything_starts(
    override, was, play, resume, tmp_path
):
    play()
    before = (tmp_path / "config.yaml").read_bytes(), (tmp_path / "result.json").read_bytes()
    engine = ScriptedEngine()
    name = override.split("=")[0]
    with pytest.raises(
        ConfigError, match=rf"expected {was}, as in the run.*may change: run\."
    ) as it:
        resume(LONGER, override, engine=engine)
    assert it.value.setting == name
    assert engine.nodes == ()
    assert before == (
        (tmp_path / "config.yaml").read_bytes(),
        (tmp_path / "result.json").read_bytes(),
    )


def test_speeds_and_links_may_change(play, resume):
    play()
    assert resume(LONGER, "+cluster.overrides.n0={latency_ms: 5}")["status"] == "done"


# -- what cannot be told ---------------------------------------------------------------------------


def test_a_failed_master_leaves_all_numbers_and_the_reason(play, resume, tmp_path):
    whole = play()
    engine = ScriptedEngine(failures={"n0/master": "its disk is full", "n1": "no master"})
    failed = resume(LONGER, engine=engine)
    assert failed.keys() == whole.keys()
    assert failed["status"] == "failed"
    assert failed["error"] == "n0/master: its disk is full"
    assert failed["range_sum"].startswith("unchecked")
    assert (failed["initial_eval_loss"], failed["sessions"][1]["staleness"]) == (5.5, None)
    assert failed["model_sha256"] is None
    assert whole["error"] is None
    assert strict(tmp_path / "result.json") == failed


def test_losses_that_are_no_numbers_are_null_and_the_run_has_diverged(play, tmp_path):
    engine = ScriptedEngine(
        master=evaluations(5.5, float("nan")), node={"train_loss": float("inf")}
    )
    numbers = play(engine=engine)
    assert strict(tmp_path / "result.json") == numbers
    assert (numbers["initial_eval_loss"], numbers["eval_loss"]) == (5.5, None)
    assert numbers["diverged"]
    assert (numbers["nodes"]["n0"]["train_loss"], numbers["nodes"]["n0"]["diverged"]) == (
        None,
        True,
    )
    assert numbers["evaluations"][1]["loss"] is None
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert (events[-1]["loss"], events[-1]["not_finite"]) == (None, ["loss"])


def test_a_run_that_learns_has_not_diverged(play):
    assert play()["diverged"] is False


def test_plain_training_is_not_resumed(small, tmp_path):
    def single(*overrides: str) -> None:
        config = small("run.role=single", "cluster.nodes=1", *overrides)
        run(config, tmp_path, stage=ScriptedStage(ScriptedEngine(master=None)))

    single()
    with pytest.raises(ConfigError, match="role=single keeps no checkpoint"):
        single(f"run.resume={tmp_path}", LONGER)


def test_a_run_that_goes_on_elsewhere_is_not_resumed(play, resume, tmp_path):
    play()
    status = tmp_path / "status.json"
    shown = StatusFile(tmp_path, NoProgress(), limits=RunLimits(), virtual=False, clock=WallClock())
    shown.show(View(nodes=(), master=None, events=(), ended=False))
    other = os.getppid()
    status.write_text(status.read_text().replace(f'"pid": {os.getpid()}', f'"pid": {other}'))
    with pytest.raises(ConfigError, match=f"goes on in process {other}"):
        resume(LONGER)
