"""A master as a Ray actor: a shell around `MasterHost`. No tensor crosses Ray."""

from pathlib import Path
from typing import Any

import ray
import torch
from ray.util.metrics import Counter, Gauge

from ray_diloco.logs import log_to
from ray_diloco.master.host import MasterHost
from ray_diloco.master.plan import MasterPlan
from ray_diloco.protocol.metrics import MASTER_METRICS, Meter
from ray_diloco.protocol.run import Event, MasterReport, MasterStatus
from ray_diloco.timing.times import Times

actor_class: Any = ray.remote
control: Any = ray.method(concurrency_group="control")


class _MasterActor:
    """``control`` answers while ``run`` leads."""

    def __init__(self, plan: MasterPlan, *, name: str, log_file: Path, log_level: str) -> None:
        """``name``: of the participant."""
        log_to(log_file, log_level)
        torch.set_num_threads(plan.threads)
        torch.set_num_interop_threads(1)
        self._plan = plan
        self._name = name
        self._host = MasterHost(plan)
        labels = {"run": plan.run.run_id, "participant": name}
        self._meter = Meter(MASTER_METRICS, labels=labels, counter=Counter, gauge=Gauge)

    def ready(self) -> None:
        """Returns when the master is built; raises what kept it from being built."""

    def run(self, times: Times) -> MasterReport:
        """Lead to the end of the run."""
        return self._host.run(times.port(self._name, profile=None, seed=self._plan.run.seed))

    @control
    def look(self) -> tuple[MasterStatus, list[Event]]:
        """The status, which is shown as metrics, too, and what happened since the last look."""
        status = self._host.status()
        self._meter.show(status)
        return status, self._host.events()

    @control
    def stop(self, reason: str) -> None:
        """The nodes have been asked to end: end when they have."""
        self._host.stop(reason)

    @control
    def ended(self, node_id: str, *, failed: bool) -> None:
        """This node's process has ended; one that failed is not waited for."""
        self._host.ended(node_id, failed=failed)


MasterActor: Any = actor_class(num_cpus=0, max_restarts=0, concurrency_groups={"control": 2})(
    _MasterActor
)
"""The actor class; Ray gives it methods that no type checker knows."""
