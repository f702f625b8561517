"""``ray job submit`` and ``ray job stop``: runs that are jobs of a Ray cluster."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from end_to_end.machines import Machines, machines
from end_to_end.programs import PATIENCE, SMALL, program
from ray.job_submission import JobSubmissionClient

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(400)]

RAY = "ray.scripts.scripts"
COMMAND = str(Path(sys.executable).parent / "ray-diloco")
PATIENT = json.dumps({"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "60"}})


@pytest.fixture(scope="module")
def cluster():
    with machines(alone=True, dashboard=True) as started:
        await_agent(JobSubmissionClient(started.dashboard))
        yield started


def await_agent(client: JobSubmissionClient) -> None:
    """A Ray that answers may have nobody yet who starts jobs."""
    ends = time.monotonic() + PATIENCE
    while True:
        try:
            client.submit_job(entrypoint="true")
        except RuntimeError as error:
            if "No available agent" not in str(error) or time.monotonic() > ends:
                raise
            time.sleep(0.5)
        else:
            return


def job(cluster: Machines, name: str, *words: str, folder: Path):
    """``ray job submit -- ray-diloco <words>``, which shows what the job prints until it ends."""
    about = ("--submission-id", name, "--runtime-env-json", PATIENT)
    asked = ("job", "submit", "--address", cluster.dashboard, *about, "--", COMMAND)
    return program(RAY, *asked, *words, folder=folder)


def stop(cluster: Machines, name: str) -> str:
    """``ray job stop``; gives what it says."""
    words = [sys.executable, "-m", RAY, "job", "stop", "--address", cluster.dashboard, name]
    told = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    assert told.returncode == 0, told.stderr
    return told.stdout + told.stderr


def test_a_job_that_is_stopped_saves_its_state_and_another_one_goes_on(cluster, tmp_path):
    where = ("run.report=false", f"hydra.run.dir={tmp_path / 'run'}")
    joined = (*SMALL, "engine=ray", "ray=cluster", "run.max_steps=100000", *where)
    with job(cluster, "first", *joined, folder=tmp_path) as run:
        run.until(lambda: run.events("publication"))
        assert "was stopped" in stop(cluster, "first")
        run.end()
    assert (run.result["status"], run.result["range_sum"]) == ("stopped", "ok")
    assert (run.run_dir / "model.safetensors").exists()
    assert "Traceback" not in run.output
    assert cluster.left() == []
    trained = max(node["local_steps"] for node in run.result["nodes"].values())
    more = (f"run.resume={run.run_dir}", f"run.max_steps={trained + 12}")
    with job(cluster, "second", *more, folder=tmp_path) as run:
        assert run.end() == 0, run.output
    assert re.search("second.* succeeded", run.output), run.output
    assert [each["status"] for each in run.result["sessions"]] == ["stopped", "done"]
    assert run.result["range_sum"] == "ok"
    assert cluster.left() == []
