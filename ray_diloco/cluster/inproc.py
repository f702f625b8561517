"""engine=inproc: every participant is a thread of this process."""

import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import closing

import torch

from ray_diloco.cluster.endings import Endings
from ray_diloco.cluster.engine import Ending, View
from ray_diloco.cluster.participants import OpenTimes, master_name, starts_of, successor
from ray_diloco.hub.memory import MemoryStore
from ray_diloco.master.host import MasterHost
from ray_diloco.master.plan import MasterPlan
from ray_diloco.node.host import NodeHost
from ray_diloco.node.plan import NodePlan
from ray_diloco.protocol.run import Event, MasterReport, NodeReport
from ray_diloco.timing.churn import ScriptedCrash
from ray_diloco.timing.times import Times

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 10.0
"""How long `close` waits for threads that were asked to end."""


class InprocEngine:
    """For tests, wide sweeps, notebooks and debugging."""

    def __init__(self, open_times: OpenTimes, *, store: MemoryStore | None = None) -> None:
        """``store``: the repository of `hub=memory`."""
        self._open_times = open_times
        self._store = store
        self._nodes: dict[str, NodeHost] = {}
        self._dead: list[NodeHost] = []
        self._master: MasterHost | None = None
        self._master_name = ""
        self._threads: list[threading.Thread] = []
        self._endings = Endings()
        self._changed = threading.Condition()
        self._torch_threads = torch.get_num_threads()

    def start(self, nodes: Sequence[NodePlan], master: MasterPlan | None) -> None:
        if nodes or master:
            torch.set_num_threads((nodes[0] if nodes else master).threads)  # type: ignore[union-attr]
        self._nodes = {plan.node_id: NodeHost(plan) for plan in nodes}
        if master is not None:
            self._master, self._master_name = MasterHost(master), master_name(master)
        times = self._open_times(starts_of(nodes, master))
        for plan in nodes:
            self._launch(plan.node_id, self._node_body(plan, times))
        if master is not None:
            self._launch(self._master_name, self._master_body(master, times))
        for thread in self._threads:
            thread.start()

    def look(self, timeout: float) -> View:
        with self._changed:
            ended = self._changed.wait_for(self._all_ended, timeout)
            nodes = list(self._nodes.values())
            hosts = [*self._dead, *nodes, *([self._master] if self._master else [])]
        events: list[Event] = [event for host in hosts for event in host.events()]
        return View(
            nodes=tuple(host.status() for host in nodes),
            master=self._master.status() if self._master else None,
            events=tuple(events),
            ended=ended,
        )

    def stop(self, reason: str) -> None:
        for host in self._nodes.values():
            host.stop(reason)
        if self._master is not None:
            self._master.stop(reason)

    def finish(self) -> Ending:
        return self._endings.ending()

    def close(self) -> None:
        if any(thread.is_alive() for thread in self._threads):
            self.stop("the engine was closed")
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(PATIENCE_SECONDS)
            if thread.is_alive():
                logger.warning("%s did not end and is left behind", thread.name)
        torch.set_num_threads(self._torch_threads)

    def _all_ended(self) -> bool:
        names = [*self._nodes, *([self._master_name] if self._master else [])]
        return all(self._endings.ended(name) for name in names)

    def _launch(self, name: str, body: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=body, name=name, daemon=True))

    def _node_body(self, plan: NodePlan, times: Times) -> Callable[[], None]:
        def body() -> None:
            self._watch(plan.node_id, lambda: self._live(plan, times))
            failed = plan.node_id in self._endings.failures
            if self._master is not None and (failed or not times.repeatable):
                self._master.ended(plan.node_id, failed=failed)

        return body

    def _live(self, plan: NodePlan, times: Times) -> NodeReport | None:
        """All incarnations of a node, one after the other; None when the last one died."""
        node_id, seed = plan.node_id, plan.run.seed
        for incarnation in itertools.count():
            host = self._nodes[node_id]
            nonce = times.nonce(node_id, seed=seed, incarnation=incarnation)
            with closing(times.port(node_id, profile=plan.profile, seed=seed)) as port:
                try:
                    return host.run(port, nonce=nonce, store=self._store)
                except ScriptedCrash as crash:
                    back = crash.back
            host.died(back)
            self._endings.crash(node_id, for_good=back is None)
            if back is None:
                return None
            next_host = NodeHost(successor(plan))
            with self._changed:
                self._dead.append(host)
                self._nodes[node_id] = next_host
        return None

    def _master_body(self, plan: MasterPlan, times: Times) -> Callable[[], None]:
        host = self._master
        assert host is not None

        def lead() -> MasterReport:
            with closing(times.port(self._master_name, profile=None, seed=plan.run.seed)) as port:
                return host.run(port, store=self._store)

        return lambda: self._watch(self._master_name, lead)

    def _watch(self, name: str, run: Callable[[], NodeReport | MasterReport | None]) -> None:
        """Keep how a participant ends; without a report it died as the scenario says."""
        try:
            report = run()
        except BaseException as error:
            with self._changed:
                self._endings.fail(name, error)
                self._changed.notify_all()
            return
        with self._changed:
            if report is not None:
                self._endings.report(name, report)
            self._changed.notify_all()
