"""A node as its engine sees it: built in two steps, asked and stopped from other threads."""

from ray_diloco.hub.memory import MemoryStore
from ray_diloco.node.build import build_node, prepare_node
from ray_diloco.node.locking import sole_use
from ray_diloco.node.node import Node
from ray_diloco.node.plan import NodePlan
from ray_diloco.node.single import SingleNode
from ray_diloco.protocol.clock import Micros, Port
from ray_diloco.protocol.events import EventLog
from ray_diloco.protocol.run import Event, NodeReport, NodeStatus


class NodeHost:
    """One incarnation of a node in this process."""

    def __init__(self, plan: NodePlan) -> None:
        """The slow part: data and model. ConfigError when they cannot be had."""
        self._plan = plan
        self._prepared = prepare_node(plan)
        self._node: Node | SingleNode | None = None
        self._events: EventLog | None = None
        self._stop_asked: str | None = None

    def run(self, port: Port, *, nonce: str, store: MemoryStore | None = None) -> NodeReport:
        """Train to the end of the run. NodeInUseError when another process has the state folder."""
        with sole_use(self._plan.state_dir, node_id=self._plan.node_id):
            return self._run(port, nonce, store)

    def _run(self, port: Port, nonce: str, store: MemoryStore | None) -> NodeReport:
        self._events = EventLog(self._plan.node_id, port)
        self._node = build_node(
            self._plan,
            self._prepared,
            nonce=nonce,
            port=port,
            record=self._events.record,
            store=store,
        )
        if self._stop_asked is not None:
            self._node.stop(self._stop_asked)
        return self._node.run()

    def status(self) -> NodeStatus:
        return self._node.status() if self._node else NodeStatus(node_id=self._plan.node_id)

    def died(self, back: Micros | None) -> None:
        """The machine is gone, as the scenario says: the last word of this incarnation. ``back``:
        when its next one joins; None: never.
        """
        if self._events is not None:
            self._events.record("crashed", local_step=self.status().local_step, back=back)

    def events(self) -> list[Event]:
        """What happened since the last call."""
        return self._events.drain() if self._events else []

    def stop(self, reason: str) -> None:
        """Ask the node to send what it has and end."""
        self._stop_asked = reason
        if self._node is not None:
            self._node.stop(reason)
