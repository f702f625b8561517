"""A whole run is killed, and goes on: nothing is lost, and it is told as one."""

import json

import pytest
from programs import SMALL, Program, ray_diloco

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
LONG = (
    "time=wall",
    "engine=inproc",
    "run.max_steps=200",
    "cluster.profiles=[{seconds_per_step: 0.03}]",
)
TRAFFIC = ("bytes_up", "bytes_down", "requests", "commits")


def merged(run: Program) -> list[dict]:
    return [each for event in run.events("publication") for each in event["deltas"]]


def told(run: Program) -> bool:
    """Its status has some traffic of everybody."""
    file = run.run_dir / "status.json"
    status = json.loads(file.read_text()) if file.exists() else {"nodes": [], "master": None}
    everybody = [*status["nodes"], status["master"]]
    return all(each is not None and each["bytes_down"] and each["commits"] for each in everybody)


def test_a_run_that_was_killed_twice_goes_on_and_is_told_as_one(tmp_path):
    begun, resumed = (*SMALL, *LONG), (f"run.resume={tmp_path / 'run'}",)
    for words in (begun, resumed):
        with ray_diloco(*words, folder=tmp_path) as run:
            enough = len(merged(run)) + 8
            run.until(lambda run=run, enough=enough: len(merged(run)) >= enough and told(run))
            run.process.kill()
            run.end()
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    with ray_diloco(*resumed, folder=tmp_path) as run:
        assert run.end() == 0, run.output
        result, deltas = run.result, merged(run)
    assert [each["status"] for each in result["sessions"]] == ["killed", "killed", "done"]
    assert (result["status"], result["range_sum"]) == ("done", "ok")
    assert result["deltas_merged"] == len(deltas) == sum(result["staleness"].values())
    assert result["nodes"]["n0"]["local_steps"] == 200
    for name in TRAFFIC:
        sessions = [each[name] for each in result["sessions"]]
        assert result[name] == sum(sessions)
        assert min(sessions) > 0
        of_nodes = sum(each[name] for each in status["nodes"])
        assert sessions[1] == of_nodes + status["master"][name]
        by_session = [each["nodes"]["n0"][name] for each in result["sessions"]]
        assert result["nodes"]["n0"][name] == sum(by_session)
    assert "2 of them killed" in run.output
