"""What a machine and its way to a hub really do, measured for a profile of the cluster."""

import math
import os
import statistics
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from omegaconf import OmegaConf

from ray_diloco.cluster.hub_service import HubAccess, open_hub
from ray_diloco.experiment.build import build_plans, complete, identify
from ray_diloco.experiment.checks import check_config
from ray_diloco.experiment.events import read_events
from ray_diloco.experiment.run import run
from ray_diloco.experiment.run_files import EVENTS
from ray_diloco.experiment.schema import Config, EngineName, TimeKind
from ray_diloco.hub.connect import connect
from ray_diloco.hub.repository import Addition, Repository
from ray_diloco.hub.settings import HubKind
from ray_diloco.node.build import prepare_node
from ray_diloco.node.plan import NodePlan
from ray_diloco.node.trainer import Trainer
from ray_diloco.protocol.clock import MICROS_PER_SECOND, Clock
from ray_diloco.timing.profile import NodeProfile
from ray_diloco.timing.wall import WallClock

WARM_UP = 3
"""Steps that are not measured: the first ones allocate."""
ROUNDS = 5
"""Transfers of each kind; the median counts."""
MERGES, INNER_STEPS, POLL_SECONDS = 6, 2, 0.1
"""Of the short run that tells what a merge takes."""
REST = 4.0
"""Its local steps, as multiples of what one takes."""
SMALL, LARGE = 1_000, 4_000_000
"""Bytes of the transfers that tell latency and bandwidth apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was measured: a profile, what a merge takes the master (None: not measured), and how
    many steps lie behind the profile.
    """

    profile: NodeProfile
    master_seconds: float | None
    steps: int
    at_once: int


def calibrate(config: Config, *, steps: int, at_once: int) -> Calibration:
    """Train ``at_once`` nodes beside each other for so many steps, then exchange files with the
    hub that the configuration names, and play a few rounds where that hub is an embedded one.
    ConfigError and HubError as for a run.
    """
    config, clock = complete(config), WallClock()
    check_config(config)
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder)
        identity = identify(config, run_dir)
        with open_hub(
            config.hub, run_id=identity.run_id, leads=True, run_dir=run_dir, in_actor=False
        ) as access:
            plans = build_plans(config, identity, access, run_dir)
            mean, sigma = step_seconds(plans.nodes[0], steps=steps, at_once=at_once, clock=clock)
            profile = measure_link(plans.nodes[0], access, run_dir, clock)
        embedded = config.hub.kind is HubKind.embedded
        merge = merge_seconds(config, run_dir / "rounds", step=REST * mean) if embedded else None
    jitter = {"jitter": "lognormal", "jitter_parameter": sigma} if sigma else {}
    measured = NodeProfile(
        seconds_per_step=mean,
        up_mbps=profile.up_mbps,
        down_mbps=profile.down_mbps,
        latency_ms=profile.latency_ms,
        **jitter,
    )
    return Calibration(
        profile=measured, master_seconds=merge, steps=steps * at_once, at_once=at_once
    )


def step_seconds(plan: NodePlan, *, steps: int, at_once: int, clock: Clock) -> tuple[float, float]:
    """Mean seconds of a local step, and sigma of their logarithms, of so many trainers at once."""
    trainers = [prepare_node(plan).trainer for _ in range(at_once)]
    taken: list[float] = []
    ready = threading.Barrier(at_once)
    threads = [
        threading.Thread(target=_time_steps, args=(trainer, steps, clock, ready, taken))
        for trainer in trainers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    logarithms = [math.log(each) for each in taken]
    sigma = statistics.pstdev(logarithms) if len(taken) > 1 else 0.0
    return statistics.fmean(taken), round(sigma, 3)


def measure_link(plan: NodePlan, access: HubAccess, folder: Path, clock: Clock) -> NodeProfile:
    """Bandwidths and latency of uploads and downloads, commit included."""
    repository = connect(
        plan.hub,
        repo_id=access.repo_id,
        endpoint=access.endpoint,
        token=access.token,
        store=access.store,
    )
    up = {size: _median(lambda n=size: _upload(repository, folder, n), clock) for size in _SIZES}
    commit = repository.head_commit()
    down = {
        size: _median(lambda n=size: _download(repository, folder, n, commit), clock)
        for size in _SIZES
    }
    return NodeProfile(
        up_mbps=_mbps(up), down_mbps=_mbps(down), latency_ms=round(up[SMALL] * 1000, 3)
    )


def merge_seconds(config: Config, folder: Path, *, step: float) -> float:
    """Median seconds of the master from what it found to its publication, in a short real run of
    two nodes. ``step``: seconds of a local step there, enough to leave the master a core.
    """
    profile = NodeProfile(seconds_per_step=step)
    played = replace(
        config,
        cluster=replace(config.cluster, nodes=2, node_ids=[], profiles=[profile], overrides={}),
        diloco=replace(config.diloco, inner_steps=INNER_STEPS, poll_interval=POLL_SECONDS),
        engine=replace(config.engine, name=EngineName.inproc),
        time=replace(config.time, kind=TimeKind.wall, emulate_profile=True),
        run=replace(config.run, max_steps=MERGES * INNER_STEPS, report=False, resume=None),
    )
    run(played, folder)
    taken = [
        event["at"] - event["began"]
        for event in read_events(folder / EVENTS)
        if event["event"] == "publication" and event["deltas"]
    ]
    return round(statistics.median(taken) / MICROS_PER_SECOND, 4)


def as_cluster(found: Calibration, *, nodes: int, about: str) -> str:
    """A file for ``conf/cluster`` with so many equal nodes. ``about``: what was measured where."""
    profile = found.profile
    told = {
        name: getattr(profile, name) for name in ("seconds_per_step", "jitter", "jitter_parameter")
    } | {name: getattr(profile, name) for name in ("up_mbps", "down_mbps", "latency_ms")}
    body = {"defaults": ["two_speed", "_self_"], "nodes": nodes, "profiles": [told]}
    if found.master_seconds is not None:
        body["master_seconds"] = found.master_seconds
    return (
        f"# {nodes} equal nodes as measured: {about}; {found.steps} steps, "
        f"{found.at_once} nodes at once.\n{OmegaConf.to_yaml(OmegaConf.create(body))}"
    )


_SIZES = (SMALL, LARGE)


def _time_steps(
    trainer: Trainer, steps: int, clock: Clock, ready: threading.Barrier, taken: list[float]
) -> None:
    for _ in range(WARM_UP):
        trainer.step()
    ready.wait()
    for _ in range(steps):
        began = clock.now()
        trainer.step()
        taken.append((clock.now() - began) / MICROS_PER_SECOND)


def _median(transfer: Callable[[], None], clock: Clock) -> float:
    seconds: list[float] = []
    for _ in range(ROUNDS):
        began = clock.now()
        transfer()
        seconds.append((clock.now() - began) / MICROS_PER_SECOND)
    return statistics.median(seconds)


def _path(size: int) -> str:
    return f"calibration/{size}.safetensors"


def _upload(repository: Repository, folder: Path, size: int) -> None:
    file = folder / "outgoing"
    file.write_bytes(os.urandom(size))
    addition = Addition(path=_path(size), source=file)
    repository.stage([addition])
    repository.commit(f"calibration with {size} bytes", additions=[addition])


def _download(repository: Repository, folder: Path, size: int, commit: str) -> None:
    repository.fetch(_path(size), commit=commit, destination=folder / "incoming")


def _mbps(seconds: dict[int, float]) -> float | None:
    """From the times of a small and a large file; None when the size made no difference."""
    longer = seconds[LARGE] - seconds[SMALL]
    return round((LARGE - SMALL) * 8 / 1e6 / longer, 3) if longer > 0 else None
