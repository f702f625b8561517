"""A run in the background, seen and ended from another shell."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from end_to_end.programs import PATIENCE

pytestmark = pytest.mark.slow

SMALL = ("experiment=quickstart", "engine=inproc", "time=wall", "time.emulate_profile=false")


def command(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).parent / name
    return subprocess.run([program, *words], capture_output=True, text=True, check=False)


def test_a_detached_run_is_seen_and_stopped_with_its_state_saved(tmp_path: Path) -> None:
    run = tmp_path / "a run"
    words = (*SMALL, "run.max_steps=100000", "ray.detach=true", f"hydra.run.dir='{run}'")
    started = command("ray-diloco", *words)
    assert started.returncode == 0, started.stderr
    assert str(run) in started.stdout
    ends = time.monotonic() + PATIENCE
    while "training" not in (seen := command("ray-diloco-status", str(run))).stdout:
        assert seen.returncode == 0, seen.stderr
        assert time.monotonic() < ends, seen.stdout
    stopped = command("ray-diloco-stop", str(run))
    assert stopped.returncode == 0, stopped.stderr + (run / "console.log").read_text()
    result = json.loads((run / "result.json").read_text())
    assert result["status"] == "stopped"
    assert result["range_sum"] == "ok"
    assert "stopped" in command("ray-diloco-status", str(run)).stdout
    assert "ended already" in command("ray-diloco-stop", str(run)).stdout


def test_what_keeps_a_detached_run_from_starting_is_shown(tmp_path: Path) -> None:
    run = f"hydra.run.dir={tmp_path / 'run'}"
    refused = command("ray-diloco", *SMALL, "diloco.inner_steps=0", "ray.detach=true", run)
    assert refused.returncode == 2
    assert "diloco.inner_steps=0" in refused.stderr


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    for name in ("ray-diloco-status", "ray-diloco-stop"):
        refused = command(name, str(tmp_path))
        assert refused.returncode == 2
        assert str(tmp_path) in refused.stderr
