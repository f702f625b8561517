"""Processes of a run on Ray that are killed: it ends, and says of what."""

import psutil
import pytest
from end_to_end.programs import SMALL, Program, left_behind, ray_diloco

pytestmark = [pytest.mark.ray, pytest.mark.slow]

LONG = ("engine=ray", "run.max_steps=100000")


def actor_of(run: Program, name: str) -> psutil.Process:
    """Ray names a process after the class of the actor in it."""
    (found,) = [each for each in run.descendants() if name in " ".join(each.cmdline())]
    return found


def test_a_run_whose_clock_is_killed_fails_and_says_so(tmp_path):
    with ray_diloco(*SMALL, *LONG, "time=virtual", folder=tmp_path) as run:
        run.until(lambda: run.events("publication"))
        started = run.descendants()
        actor_of(run, "ClockActor").kill()
        assert run.end() == 1, run.output
        assert run.result["status"] == "failed"
        assert run.result["trace_hash"] is None
        assert "the virtual clock's process died" in run.result["error"]
        assert "Traceback" not in run.output
        assert left_behind(started) == []


def test_a_run_one_of_whose_nodes_is_killed_for_good_says_so_and_keeps_what_it_merged(tmp_path):
    words = ("engine=ray", "time=wall", "run.max_steps=1000", "ray.restarts=0")
    with ray_diloco(*SMALL, *words, folder=tmp_path) as run:
        run.until(lambda: run.events("publication"))
        (node, *_) = [p for p in run.descendants() if "NodeActor" in " ".join(p.cmdline())]
        node.kill()
        assert run.end() == 1, run.output
        assert run.result["status"] == "failed"
        assert len(run.result["failures"]) == 1
        assert "its process died" in next(iter(run.result["failures"].values()))
        assert (run.run_dir / "model.safetensors").exists()
