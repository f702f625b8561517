"""A run's curves in the real packages, which keep them on this machine.

Needs the extra `interop`; runs with `-m interop`.
"""

import json
import sqlite3
from pathlib import Path

import pytest
from end_to_end.programs import SMALL, Program, ray_diloco

from ray_diloco.experiment.tracking.points import FINAL, points_of

for package in ("wandb", "mlflow", "trackio"):
    pytest.importorskip(package, reason="needs the extra interop; runs in .ci/run")
pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

QUIET = ("engine=inproc", "hub=embedded", "run.report=false")


def played(service: str, folder: Path, *words: str, **env: str) -> Program:
    """A run, and the same run again that goes on for another round."""
    words = (*SMALL, *QUIET, f"tracking={service}", "tracking.project=study", *words)
    with ray_diloco(*words, folder=folder, **env) as first:
        assert first.end() == 0, first.output
    more = (f"run.resume={folder / 'run'}", "run.max_steps=16", "run.progress=plain")
    with ray_diloco(*more, folder=folder, **env) as run:
        assert run.end() == 0, run.output
    assert len(run.result["sessions"]) == 2
    return run


def curve(run: Program, tag: str) -> set[tuple[int, float]]:
    lines = (run.run_dir / "events.jsonl").read_text().splitlines()
    points = [point for line in lines for point in points_of(json.loads(line))]
    return {(point.step, point.value) for point in points if point.tag == tag}


def test_mlflow_has_the_curves_the_settings_and_the_end_of_one_run(tmp_path):
    store = tmp_path / "store"
    env = {"MLFLOW_TRACKING_URI": str(store), "MLFLOW_ALLOW_FILE_STORE": "true"}
    run = played("mlflow", tmp_path, **env)
    (kept,) = store.glob("*/*/metrics")
    for tag in ("train_loss/n0", "train_loss/n1", "eval_loss", "staleness"):
        lines = [line.split() for line in (kept / tag).read_text().splitlines()]
        found = {(int(step), float(value)) for _, value, step in lines}
        assert found == curve(run, tag)
        assert found
    assert {each.name for each in (kept / "result").iterdir()} == set(FINAL)
    last = (kept / "result" / "tokens").read_text().split()[-2]
    assert float(last) == run.result["tokens"]
    assert (kept.parent / "params" / "diloco.inner_steps").read_text() == "4"
    assert "status: 3" in (kept.parent / "meta.yaml").read_text()  # FINISHED


def test_wandb_has_the_curves_of_both_sessions_under_one_name(tmp_path):
    run = played("wandb", tmp_path, WANDB_MODE="offline")
    name = (run.run_dir / "tracked_as").read_text().strip()
    files = sorted(run.run_dir.glob(f"wandb/offline-run-*-{name}/run-{name}.wandb"))
    assert len(files) == 2
    for file in files:
        kept = file.read_bytes()
        for tag in ("train_loss/n0", "train_loss/n1", "eval_loss", "staleness", "result/tokens"):
            assert tag.encode() in kept


def test_trackio_has_the_curves_of_both_sessions_in_one_run(tmp_path):
    run = played("trackio", tmp_path, TRACKIO_DIR=str(tmp_path / "trackio"))
    name = (run.run_dir / "tracked_as").read_text().strip()
    with sqlite3.connect(tmp_path / "trackio" / "study.db") as kept:
        rows = kept.execute("SELECT run_name, step, metrics FROM metrics").fetchall()
    kept.close()
    assert {each for each, *_ in rows} == {name}
    told = [(step, json.loads(metrics)) for _, step, metrics in rows]
    for tag in ("train_loss/n0", "train_loss/n1", "eval_loss", "staleness"):
        assert {(step, each[tag]) for step, each in told if tag in each} == curve(run, tag)


def test_a_service_that_does_not_take_the_run_is_named_before_anything_starts(tmp_path):
    words = (*SMALL, *QUIET, "tracking=mlflow")
    with ray_diloco(*words, folder=tmp_path, MLFLOW_TRACKING_URI=str(tmp_path / "store")) as run:
        assert run.end() == 2, run.output
    assert "tracking.name='mlflow': expected a service that takes the run: " in run.output
    assert "Traceback" not in run.output
    assert "starting" not in run.output
