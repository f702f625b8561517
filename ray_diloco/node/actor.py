"""A node as a Ray actor: a shell around `NodeHost`. No tensor crosses Ray."""

from pathlib import Path
from typing import Any

import ray
import torch
from ray.util.metrics import Counter, Gauge

from ray_diloco.logs import log_to
from ray_diloco.node.host import NodeHost
from ray_diloco.node.plan import NodePlan
from ray_diloco.protocol.clock import Micros
from ray_diloco.protocol.metrics import NODE_METRICS, Meter
from ray_diloco.protocol.run import Event, NodeReport, NodeStatus
from ray_diloco.timing.times import Times

actor_class: Any = ray.remote
control: Any = ray.method(concurrency_group="control")


class _NodeActor:
    """``control`` answers while ``run`` trains."""

    def __init__(self, plan: NodePlan, *, log_file: Path, log_level: str) -> None:
        log_to(log_file, log_level)
        torch.set_num_threads(plan.threads)
        torch.set_num_interop_threads(1)
        self._plan = plan
        self._host = NodeHost(plan)
        labels = {"run": plan.run.run_id, "participant": plan.node_id}
        self._meter = Meter(NODE_METRICS, labels=labels, counter=Counter, gauge=Gauge)

    def ready(self) -> None:
        """Returns when the node is built; raises what kept it from being built."""

    def run(self, times: Times, *, incarnation: int = 0) -> NodeReport:
        """Train to the end of the run."""
        plan, seed = self._plan, self._plan.run.seed
        port = times.port(plan.node_id, profile=plan.profile, seed=seed)
        nonce = times.nonce(plan.node_id, seed=seed, incarnation=incarnation)
        return self._host.run(port, nonce=nonce)

    @control
    def look(self) -> tuple[NodeStatus, list[Event]]:
        """The status, which is shown as metrics, too, and what happened since the last look."""
        status = self._host.status()
        self._meter.show(status)
        return status, self._host.events()

    @control
    def died(self, back: Micros | None) -> tuple[NodeStatus, list[Event]]:
        """The machine is about to be gone, as the scenario says: its last words."""
        self._host.died(back)
        return self.look()

    @control
    def stop(self, reason: str) -> None:
        """Ask the node to send what it has and end."""
        self._host.stop(reason)


NodeActor: Any = actor_class(num_cpus=0, max_restarts=0, concurrency_groups={"control": 2})(
    _NodeActor
)
"""The actor class; Ray gives it methods that no type checker knows."""
