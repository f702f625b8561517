import json
import logging
import os
import shutil
import signal

import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf
from safetensors import safe_open
from scripted import ScriptedEngine, ScriptedStage

from ray_diloco.errors import ConfigError, ForeignRunError, PermanentHubError
from ray_diloco.experiment.live_status import ask_to_stop, read_status
from ray_diloco.experiment.resuming import load_config
from ray_diloco.experiment.run import run

KEYS = (
    *("eval_loss", "initial_eval_loss", "tokens", "wall_seconds", "outer_steps", "bytes_up"),
    *("bytes_down", "commits", "dropped_local_steps", "rejected_deltas", "nodes"),
)


LONGER = "run.max_steps=20"


def read(folder) -> dict:
    return json.loads((folder / "result.json").read_text())


class Notes:
    """Progress that keeps what it is told."""

    def __init__(self) -> None:
        self.views = []
        self.lines: list[str] = []

    def show(self, view) -> None:
        self.views.append(view)

    def note(self, text: str) -> None:
        self.lines.append(text)

    def close(self) -> None: ...


def test_a_run_leaves_a_complete_folder(small, tmp_path):
    stage = ScriptedStage(ScriptedEngine())
    result = run(small(), tmp_path / "run", stage=stage, overrides=("debug=default",))
    folder = tmp_path / "run"
    numbers = json.loads((folder / "result.json").read_text())
    assert numbers == result.numbers
    assert [key for key in KEYS if key not in numbers] == []
    assert (numbers["status"], numbers["range_sum"], result.exit_code) == ("done", "ok", 0)
    assert (numbers["initial_eval_loss"], numbers["eval_loss"]) == (5.5, 3.25)
    assert numbers["bytes_up"] == 100 + 100 + 50
    assert numbers["staleness"] == {"0": 4, "1": 2}
    assert numbers["nodes"]["n0"]["utilisation"] == 0.5
    assert numbers["overrides"] == ["debug=default"]
    assert list((folder / "tensorboard").iterdir()) != []
    with safe_open(folder / "model.safetensors", "pt") as model:
        assert list(model.keys()) == ["weight"]
    assert not list(folder.glob("*.partial"))


def test_events_carry_both_times_and_end_with_the_evaluations(small, tmp_path):
    run(small(), tmp_path, stage=ScriptedStage(ScriptedEngine()))
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert all("at" in event and event["wall_at"].endswith("+00:00") for event in events)
    assert [event["event"] for event in events[-2:]] == ["evaluation", "evaluation"]
    table = pq.read_table(tmp_path / "metrics.parquet").to_pylist()
    assert len(table) == len(events)
    assert table[-1]["loss"] == 3.25
    assert table[-1]["at_seconds"] == 1.5


def test_the_resolved_configuration_knows_the_run_and_no_secret(small, tmp_path):
    stage = ScriptedStage(ScriptedEngine())
    run(small(), tmp_path, stage=stage)
    written = OmegaConf.load(tmp_path / "config.yaml")
    assert [(written.run.run_id, True)] == stage.entered
    assert written.inner.schedule_steps == written.run.max_steps
    assert "token:" not in (tmp_path / "config.yaml").read_text()


def test_a_folder_with_a_run_is_refused_unless_it_is_resumed(small, tmp_path):
    run(small("hub=embedded"), tmp_path, stage=ScriptedStage(ScriptedEngine()))
    first = OmegaConf.load(tmp_path / "config.yaml").run.run_id
    with pytest.raises(ConfigError, match="holds a run already"):
        run(small("hub=embedded"), tmp_path, stage=ScriptedStage(ScriptedEngine()))
    stage = ScriptedStage(ScriptedEngine())
    run(small("hub=embedded", f"run.resume={tmp_path}", LONGER), tmp_path, stage=stage)
    assert stage.entered == [(first, True)]
    assert stage.engine.master is not None
    assert stage.engine.master.resume


def test_the_log_names_each_outer_step_once_and_the_last_with_its_reason(small, tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="ray_diloco.master.rounds"):
        result = run(small("time=virtual", "engine=inproc"), tmp_path)
    *merged, last = caplog.messages
    steps = result.numbers["outer_steps"]
    assert [line.split(":")[0] for line in merged] == [f"outer step {n + 1}" for n in range(steps)]
    assert last == f"outer step {steps} is the last: {result.numbers['stop_reason']}"


def test_a_folder_with_the_repository_of_an_earlier_run_is_refused(small, tmp_path):
    run(small("hub=embedded", "time=virtual", "engine=inproc"), tmp_path)
    (tmp_path / "events.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"repository of an earlier run \(hub/\)"):
        run(small("hub=embedded", "time=virtual", "engine=inproc"), tmp_path)


def test_a_start_that_was_killed_leaves_nothing_that_its_repetition_minds(small, tmp_path):
    words = ("hub=embedded", "time=virtual", "engine=inproc")
    whole = run(small(*words), tmp_path / "whole")
    left = tmp_path / "left"
    for name in ("hub", "state"):
        shutil.copytree(tmp_path / "whole" / name, left / name)
    (left / "starting").touch()
    assert run(small(*words), left).numbers["range_sum"] == "ok"
    for name in ("trace_hash", "model_sha256", "deltas_merged"):
        assert read(left)[name] == whole.numbers[name]
    assert not (left / "starting").exists()


def test_a_start_that_failed_leaves_no_mark_and_a_killed_one_is_no_run_to_go_on_with(
    small, tmp_path
):
    stage = ScriptedStage(ScriptedEngine(), refusal=ConfigError("ray.address", "x", "expected y"))
    with pytest.raises(ConfigError, match="expected y"):
        run(small("hub=embedded"), tmp_path / "run", stage=stage)
    assert not (tmp_path / "run").exists()
    (tmp_path / "starting").touch()
    with pytest.raises(ConfigError, match="ended while it started: give its command again"):
        load_config(tmp_path)
    assert read_status(tmp_path) is None


def test_a_run_does_not_go_on_in_another_repository_than_its_own(small, tmp_path):
    words = ("hub=embedded", "time=virtual", "engine=inproc")
    before = run(small(*words), tmp_path)
    shutil.rmtree(tmp_path / "hub")
    with pytest.raises(ForeignRunError, match="is empty: expected the one that"):
        run(small(*words, f"run.resume={tmp_path}", LONGER), tmp_path)
    assert read(tmp_path) == before.numbers


def test_a_second_run_in_the_folder_of_one_that_is_under_way_is_refused(small, tmp_path):
    met = []

    class Second(ScriptedStage):
        def __enter__(self):
            with pytest.raises(ConfigError, match="a run is under way in this folder") as caught:
                run(small(), tmp_path, stage=ScriptedStage(ScriptedEngine()))
            ask_to_stop(tmp_path)
            with pytest.raises(ConfigError, match="under way"):
                run(small(), tmp_path, stage=ScriptedStage(ScriptedEngine()))
            met.append((caught.value.setting, (tmp_path / "stop").exists()))
            return super().__enter__()

    assert run(small(), tmp_path, stage=Second(ScriptedEngine())).status == "done"
    assert met == [("hydra.run.dir", True)]


def test_a_wish_to_stop_an_earlier_session_is_forgotten(small, tmp_path):
    ask_to_stop(tmp_path)
    run(small(), tmp_path, stage=ScriptedStage(ScriptedEngine()))
    assert not (tmp_path / "stop").exists()


def test_a_broken_range_sum_fails_the_run(small, tmp_path):
    result = run(small(), tmp_path, stage=ScriptedStage(ScriptedEngine(lost="1-11")))
    assert result.status == "failed"
    assert result.exit_code == 1
    assert result.numbers["range_sum"][0].startswith("node n0: steps 12-12")


def test_a_participant_that_failed_fails_the_run_and_is_named(small, tmp_path):
    result = run(small(), tmp_path, stage=ScriptedStage(ScriptedEngine(failures={"n1": "boom"})))
    assert result.status == "failed"
    assert result.numbers["failures"] == {"n1": "boom"}
    assert list(result.numbers["nodes"]) == ["n0"]


def test_a_failed_master_stops_the_nodes(small, tmp_path):
    engine = ScriptedEngine(failures={"n0/master": "boom"})
    run(small(), tmp_path, stage=ScriptedStage(engine))
    assert engine.stop_reasons == ["the master failed"]


def test_the_first_interrupt_stops_cleanly_and_saves(small, tmp_path):
    def interrupt(looks: int) -> None:
        if looks == 3:
            os.kill(os.getpid(), signal.SIGINT)

    notes, engine = Notes(), ScriptedEngine(on_look=interrupt)
    before = signal.getsignal(signal.SIGINT)
    result = run(small(), tmp_path, stage=ScriptedStage(engine), progress=notes)
    assert engine.stop_reasons == ["interrupted"]
    assert (result.status, result.exit_code) == ("stopped", 130)
    assert (tmp_path / "result.json").exists()
    assert any("stopping and saving" in line for line in notes.lines)
    assert signal.getsignal(signal.SIGINT) == before


def test_the_second_interrupt_ends_at_once(small, tmp_path):
    def interrupt(looks: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    engine = ScriptedEngine(on_look=interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(small(), tmp_path, stage=ScriptedStage(engine))
    assert engine.closed


def test_trouble_with_the_hub_comes_before_any_participant_and_leaves_no_records(small, tmp_path):
    engine = ScriptedEngine()
    stage = ScriptedStage(engine, refusal=PermanentHubError("wrong token"))
    with pytest.raises(PermanentHubError):
        run(small(), tmp_path / "run", stage=stage)
    assert engine.nodes == ()
    assert not (tmp_path / "run").exists()


def test_a_worker_joins_a_run_that_it_does_not_lead(small, tmp_path):
    stage = ScriptedStage(ScriptedEngine())
    result = run(small("run.role=worker", "hub.repo_id=me/run"), tmp_path, stage=stage)
    assert stage.entered == [("", False)]
    assert stage.engine.master is None
    assert {plan.role for plan in stage.engine.nodes} == {"worker"}
    assert result.numbers["eval_loss"] is None
    assert result.numbers["range_sum"].startswith("unchecked")
    assert result.status == "done"


def test_single_needs_no_hub_and_keeps_its_own_model_and_losses(small, tmp_path):
    stage = ScriptedStage(ScriptedEngine())
    config = small("run.role=single", "cluster=single", "cluster.nodes=1")
    result = run(config, tmp_path, stage=stage)
    assert stage.entered == []
    assert [plan.role for plan in stage.engine.nodes] == ["single"]
    assert (result.numbers["initial_eval_loss"], result.eval_loss) == (5.0, 3.0)
    assert (tmp_path / "model.safetensors").exists()
