"""A run that goes through everything a hub and its network can do wrong, and loses nothing."""

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from ray_diloco.experiment.reading import read_config
from ray_diloco.experiment.run import run
from ray_diloco.experiment.schema import Config
from ray_diloco.hub.embedded.server import EmbeddedHub
from ray_diloco.hub.embedded.storm import Storm
from ray_diloco.hub.embedded.strict import Fault
from ray_diloco.hub.secret import Secret
from ray_diloco.hub.settings import FAULT_KINDS

TOKEN = "hf_" + "storm" * 6
STEPS = 400
FAULTS = dict.fromkeys(FAULT_KINDS, 0.04) | {
    "errors": 0.01,
    "stall": 0.01,
    "reset": 0.02,
    "lost": 0.03,
    "busy": 0.08,
    "quota": 0.08,
    "landed_500": 0.08,
    "expire": 0.06,
}
RESTARTS = 3


def settings(seed: int, endpoint: str | None = None) -> Config:
    """Without an ``endpoint`` calm weather, which needs no real time."""
    return read_config(
        {
            "run": {"max_steps": STEPS, "seed": seed, "report": False},
            "engine": {"name": "inproc"},
            "time": {"kind": "virtual" if endpoint is None else "wall"},
            "cluster": {"nodes": 4, "profiles": [{"seconds_per_step": s} for s in (0.05, 0.06)]},
            "diloco": {
                "inner_steps": 50,  # far longer than a fault, or half of the rounds fall out
                "poll_interval": 0.5,
                "stop_timeout": 60.0,
                "outer_momentum": 0.0,  # with 0.9 unequal nodes diverge in calm weather as well
                "reset_inner_optimizer": False,
            },
            "data": {"name": "synthetic", "synthetic_bytes": 50_000, "batch_size": 4},
            "model": {"name": "mlp", "width": 16, "hidden": 32},
            "inner": {"warmup_steps": 5},
            "hub": {
                "endpoint": endpoint,
                "read_timeout": 2.0,
                "total_timeout": 5.0,
                "retry_first": 0.05,
                "retry_longest": 0.5,
                "fault_seconds": 0.5,
            },
        }
    )


class EveryKind:
    """A storm in which each kind of fault strikes at least once, however few requests a run makes:
    after the first ``after``, what has not struck yet does so at its first chance.
    """

    def __init__(self, faults: dict[str, float], *, seed: int, seconds: float, after: int) -> None:
        self._storm = Storm(faults, seed=seed, seconds=seconds)
        self._certain = {kind: Storm({kind: 1.0}, seed=seed, seconds=seconds) for kind in faults}
        self._calm_left = after

    @property
    def struck(self) -> set[str]:
        struck = {kind for kind, storm in self._certain.items() if storm.struck}
        return struck | set(self._storm.struck)

    def __call__(self, route: str, request: web.Request) -> Fault | None:
        fault = self._storm(route, request)
        self._calm_left -= 1
        if fault is None and self._calm_left < 0:
            missing = (self._certain[kind] for kind in self._certain.keys() - self.struck)
            fault = next(filter(None, (storm(route, request) for storm in missing)), None)
        return fault


class RestlessHub:
    """A hub in a storm that goes down and comes back, with its address, folder and token."""

    def __init__(self, folder: Path, plan: EveryKind) -> None:
        self._folder = folder
        self._plan = plan
        self._hub = self._start(0)
        self.restarts = 0

    @property
    def endpoint(self) -> str:
        return self._hub.endpoint

    def restart(self) -> None:
        port = int(self.endpoint.rsplit(":", 1)[1])
        self._hub.close()
        self._hub = self._start(port)
        self.restarts += 1

    def close(self) -> None:
        self._hub.close()

    def _start(self, port: int) -> EmbeddedHub:
        token = Secret(TOKEN)
        return EmbeddedHub(self._folder, port=port, token=token, plan=self._plan).start()


@contextlib.contextmanager
def restarted_now_and_then(hub: RestlessHub, seconds: float) -> Iterator[None]:
    over = threading.Event()

    def body() -> None:
        while hub.restarts < RESTARTS and not over.wait(seconds):
            hub.restart()

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def losses_of_calm_runs(folder: Path) -> list[float]:
    return [run(settings(seed), folder / str(seed)).numbers["eval_loss"] for seed in range(3)]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_run_through_a_storm_loses_no_step_and_learns_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calm = losses_of_calm_runs(tmp_path / "calm")
    caplog.clear()
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    plan = EveryKind(FAULTS, seed=1, seconds=0.5, after=100)
    with contextlib.closing(RestlessHub(tmp_path / "hub", plan)) as hub:
        caplog.set_level(logging.WARNING, logger="ray_diloco")
        with restarted_now_and_then(hub, 3.0):
            result = run(settings(3, hub.endpoint), tmp_path / "storm")
    assert plan.struck == set(FAULT_KINDS)
    assert hub.restarts == RESTARTS
    assert_whole(result.numbers)
    spread = max(calm) - min(calm)
    margin = max(spread, 0.25)  # a busy machine moves a run in wall time more than a storm does
    assert min(calm) - margin <= result.numbers["eval_loss"] <= max(calm) + margin
    assert len(caplog.records) < 40


def assert_whole(numbers: dict[str, Any]) -> None:
    """Every local step is covered once; nothing good was rejected or given up."""
    assert numbers["status"] == "done"
    assert numbers["range_sum"] == "ok"
    assert numbers["rejected_deltas"] == 0
    assert numbers["dropped_local_steps"] == 0
    assert numbers["tokens"] == sum(node["tokens"] for node in numbers["nodes"].values())
    assert {node["local_steps"] for node in numbers["nodes"].values()} == {STEPS}
