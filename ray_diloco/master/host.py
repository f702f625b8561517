"""A master as its engine sees it: built in two steps, asked and stopped from other threads."""

from ray_diloco.hub.memory import MemoryStore
from ray_diloco.master.build import build_master, prepare_master
from ray_diloco.master.master import Master
from ray_diloco.master.plan import MasterPlan
from ray_diloco.protocol.clock import Port
from ray_diloco.protocol.events import EventLog
from ray_diloco.protocol.run import Event, MasterReport, MasterStatus


class MasterHost:
    """One incarnation of a master in this process."""

    def __init__(self, plan: MasterPlan) -> None:
        """The slow part: model and held-out data. ConfigError when they cannot be had."""
        self._plan = plan
        self._prepared = prepare_master(plan)
        self._master: Master | None = None
        self._events: EventLog | None = None
        self._stop_asked: str | None = None
        self._ended: list[tuple[str, bool]] = []

    def run(self, port: Port, *, store: MemoryStore | None = None) -> MasterReport:
        """Lead to the end of the run."""
        self._events = EventLog(f"{self._plan.master_id}/master", port)
        self._master = build_master(
            self._plan, self._prepared, port=port, record=self._events.record, store=store
        )
        if self._stop_asked is not None:
            self._master.stop(self._stop_asked)
        for node_id, failed in self._ended:
            self._master.ended(node_id, failed=failed)
        return self._master.run()

    def status(self) -> MasterStatus:
        return self._master.status() if self._master else MasterStatus()

    def events(self) -> list[Event]:
        """What happened since the last call."""
        return self._events.drain() if self._events else []

    def stop(self, reason: str) -> None:
        """The nodes have been asked to end: end when they have."""
        self._stop_asked = reason
        if self._master is not None:
            self._master.stop(reason)

    def ended(self, node_id: str, *, failed: bool) -> None:
        """This node's process has ended; one that failed is not waited for."""
        self._ended.append((node_id, failed))
        if self._master is not None:
            self._master.ended(node_id, failed=failed)
