"""Real nodes and a real master on a real repository in virtual time, from parts that a test
chooses; and what they did, as the moments of `reference.play`.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ray_diloco.hub.limits import RetryPolicy
from ray_diloco.hub.memory import MemoryRepository
from ray_diloco.hub.patience import Retry
from ray_diloco.hub.repository import Repository
from ray_diloco.master.master import Master
from ray_diloco.node.account import Origin
from ray_diloco.node.exchange import Exchange
from ray_diloco.node.node import Node
from ray_diloco.node.trainer import Trainer
from ray_diloco.node.weights import Weights
from ray_diloco.protocol.clock import Port, micros
from ray_diloco.protocol.events import EventLog
from ray_diloco.protocol.run import Event, MasterReport, NodeReport, RunIdentity, RunLimits
from ray_diloco.protocol.seeds import seeded
from ray_diloco.protocol.settings import DilocoSettings
from ray_diloco.tensors.schema import StateSchema
from ray_diloco.timing.profile import NodeProfile
from ray_diloco.timing.virtual import VirtualClock
from ray_diloco.workload.settings import InnerSettings

RUN = RunIdentity(run_id="run-1", config_hash="0" * 64, seed=0)
POLICY = RetryPolicy(
    first=micros(0.1), longest=micros(1), deadline=micros(5), quota_longest=micros(5)
)
INNER = InnerSettings(learning_rate=0.05, warmup_steps=0, schedule="constant")
PATIENCE = 60.0


@dataclass(frozen=True, kw_only=True)
class Played:
    """A run that has ended: reports, events by participant, the nodes' models."""

    nodes: dict[str, NodeReport]
    master: MasterReport
    events: dict[str, list[Event]]
    models: dict[str, nn.Module]


def make_node(
    node_id: str,
    *,
    model: nn.Module,
    batches: Sequence[Any],
    settings: DilocoSettings,
    limits: RunLimits,
    repository: Repository,
    port: Port,
    folder: Path,
    inner: InnerSettings = INNER,
    run_id: str = RUN.run_id,
    record: Callable[..., None] | None = None,
) -> Node:
    """As `node.build` makes one, around any model and any batches."""
    trainer = Trainer(model, batches, inner)
    weights = Weights(trainer.model, codec="fp32", mismatch=settings.install_mismatch)
    exchange = Exchange(
        node_id=node_id,
        nonce=f"nonce-{node_id}",
        run_id=run_id,
        inner_steps=settings.inner_steps,
        repository=repository,
        weights=weights,
        retry=Retry(POLICY, seeded(0, node_id, "retry"), port),
        clock=port,
        state_dir=folder / node_id,
    )
    return Node(
        origin=Origin(node_id=node_id, nonce=f"nonce-{node_id}"),
        settings=settings,
        limits=limits,
        trainer=trainer,
        weights=weights,
        exchange=exchange,
        repository=repository,
        port=port,
        record=record or EventLog(node_id, port).record,
    )


def make_master(
    *,
    model: nn.Module,
    expected: Sequence[str],
    settings: DilocoSettings,
    repository: Repository,
    port: Port,
    folder: Path,
    limits: RunLimits | None = None,
    record: Callable[..., None] | None = None,
) -> Master:
    """As `master.build` makes one, without held-out data."""
    return Master(
        master_id="m",
        run=RUN,
        limits=limits or RunLimits(),
        settings=settings,
        expected=tuple(expected),
        resume=False,
        initial={name: value.clone() for name, value in model.state_dict().items()},
        schema=StateSchema.of(model),
        evaluator=None,
        repository=repository,
        retry=Retry(POLICY, seeded(0, "m", "retry"), port),
        port=port,
        record=record or EventLog("m", port).record,
        state_dir=folder / "master",
    )


def play(
    folder: Path,
    *,
    build: Callable[[], nn.Module],
    batches: dict[str, Sequence[Any]],
    settings: DilocoSettings,
    steps: int,
    seconds: dict[str, float] | None = None,
    inner: InnerSettings = INNER,
    open_repository: Callable[[], Callable[[], Repository]] | None = None,
) -> Played:
    """Run to the end. ``seconds``: virtual seconds per step of each node, 1 without.
    ``open_repository`` gives a function that gives each participant a handle; in memory without.
    """
    handle = open_repository() if open_repository else MemoryRepository().another
    clock = VirtualClock(["m", *batches])
    logs: dict[str, EventLog] = {}
    bodies: dict[str, Callable[[], Any]] = {}
    models = {node_id: build() for node_id in batches}
    for node_id, model in models.items():
        profile = NodeProfile(seconds_per_step=(seconds or {}).get(node_id, 1.0))
        port = clock.port(node_id, profile=profile)
        logs[node_id] = EventLog(node_id, port)
        bodies[node_id] = make_node(
            node_id,
            model=model,
            batches=batches[node_id],
            settings=settings,
            limits=RunLimits(max_steps=steps),
            repository=handle(),
            port=port,
            folder=folder,
            inner=inner,
            record=logs[node_id].record,
        ).run
    port = clock.port("m")
    logs["m"] = EventLog("m", port)
    bodies["m"] = make_master(
        model=build(),
        expected=list(batches),
        settings=settings,
        repository=handle(),
        port=port,
        folder=folder,
        record=logs["m"].record,
    ).run
    reports = run_together(bodies)
    return Played(
        nodes={node_id: reports[node_id] for node_id in batches},
        master=reports["m"],
        events={name: log.drain() for name, log in logs.items()},
        models=models,
    )


def run_together(bodies: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """Each body in a thread; what they return. The first error comes up."""
    results: dict[str, Any] = {}
    errors: list[BaseException] = []

    def guarded(name: str) -> None:
        try:
            results[name] = bodies[name]()
        except BaseException as error:
            errors.append(error)

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    threads = [threading.Thread(target=guarded, args=(n,), daemon=True) for n in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    torch.set_num_threads(before)
    if errors:
        raise errors[0]
    assert len(results) == len(bodies), "somebody hangs"
    return results


# -- what they did ---------------------------------------------------------------------------------


def moments_of(played: Played) -> list[tuple]:
    """The run as a list of moments: each participant's in order, nothing before what it needs."""
    waiting = {
        node_id: node_moments(node_id, report, played.events[node_id])
        for node_id, report in played.nodes.items()
    }
    waiting["m"] = master_moments(played.events["m"])
    done: list[tuple] = []
    while any(waiting.values()):
        before = len(done)
        for queue in waiting.values():
            while queue and _may_come(queue[0], done):
                done.append(queue.pop(0))
        assert len(done) > before, f"these wait for each other: {waiting}"
    return done


def node_moments(node_id: str, report: NodeReport, events: list[Event]) -> list[tuple]:
    moments: list[tuple] = []
    stepped = 0
    for event in events:
        at = event.get("local_step", stepped)
        match event["event"]:
            case "upload_started":
                found: list[tuple] = [("send", node_id, at)]
            case "delta_landed":
                at, found = stepped, [("land", node_id)]
            case "install":
                found = [("install", node_id, event["outer_step"])]
            case "node_stopping":
                found = []
            case _:
                continue
        moments += [("step", node_id)] * (at - stepped) + found
        stepped = max(at, stepped)
    return moments + [("step", node_id)] * (report.local_steps - stepped)


def master_moments(events: list[Event]) -> list[tuple]:
    return [
        ("merge", tuple((d["node"], d["local_step"], d["base_outer_step"]) for d in each["deltas"]))
        for each in events
        if each["event"] == "publication" and each["deltas"]
    ]


def _may_come(moment: tuple, done: list[tuple]) -> bool:
    match moment:
        case ("merge", deltas):
            return all(("send", node, step) in done for node, step, _ in deltas)
        case ("install", _, outer_step):
            return sum(each[0] == "merge" for each in done) >= outer_step
        case _:
            return True
