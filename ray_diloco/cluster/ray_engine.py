"""engine=ray: each node is an actor, a master actor runs the outer loop. Needs a Ray session."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from ray_diloco.cluster.clock_actor import RemoteTimes
from ray_diloco.cluster.endings import Endings
from ray_diloco.cluster.engine import Ending, View
from ray_diloco.cluster.participants import OpenTimes, master_name, starts_of, successor
from ray_diloco.master.actor import MasterActor
from ray_diloco.master.plan import MasterPlan
from ray_diloco.node.actor import NodeActor
from ray_diloco.node.plan import NodePlan
from ray_diloco.protocol.clock import Micros
from ray_diloco.protocol.run import Event, MasterStatus, NodeStatus
from ray_diloco.timing.times import Times

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
"""How long a status is waited for; an actor that is slower keeps its last one."""
GOODBYE_SECONDS = 5.0


class RayEngine:
    """Actors that ask Ray for no CPU, so that any number of them starts on any machine."""

    def __init__(self, open_times: OpenTimes, *, run_dir: Path, log_level: str) -> None:
        """``run_dir``: gets a log file per actor."""
        self._open_times = open_times
        self._logs = run_dir / "logs"
        self._log_level = log_level
        self._actors: dict[str, Any] = {}
        self._master_name: str | None = None
        self._plans: dict[str, NodePlan] = {}
        self._running: dict[Any, str] = {}
        self._times: Times | None = None
        self._next_death: Any = None
        self._endings = Endings()
        self._statuses: dict[str, Any] = {}

    def start(self, nodes: Sequence[NodePlan], master: MasterPlan | None) -> None:
        for plan in nodes:
            self._statuses[plan.node_id] = NodeStatus(node_id=plan.node_id)
            self._plans[plan.node_id] = plan
            self._actors[plan.node_id] = self._node_actor(plan)
        if master is not None:
            name = self._master_name = master_name(master)
            self._statuses[name] = MasterStatus()
            self._actors[name] = MasterActor.remote(
                master,
                name=name,
                log_file=self._logs / f"{master.master_id}-master.log",
                log_level=self._log_level,
            )
        _get([actor.ready.remote() for actor in self._actors.values()])
        times = self._times = self._open_times(starts_of(nodes, master))
        if isinstance(times, RemoteTimes):
            self._next_death = times.actor.next_death.remote()
        for name, actor in self._actors.items():
            self._running[actor.run.remote(times)] = name

    def look(self, timeout: float) -> View:
        done: list[Any] = []
        if self._running:
            deaths = [self._next_death] if self._next_death is not None else []
            done, _ = ray.wait([*deaths, *self._running], num_returns=1, timeout=timeout)
        for reference in done:
            if reference != self._next_death:
                self._take(reference)
        events = self._renew()
        death = self._next_death
        if death is not None and death in done:
            self._replace(*ray.get(death))
        return View(
            nodes=tuple(each for each in self._statuses.values() if isinstance(each, NodeStatus)),
            master=self._statuses.get(self._master_name or ""),
            events=tuple(events),
            ended=not self._running,
        )

    def stop(self, reason: str) -> None:
        for name in self._running.values():
            self._actors[name].stop.remote(reason)

    def finish(self) -> Ending:
        return self._endings.ending()

    def close(self) -> None:
        """Actors that still run are asked to end, and killed when they have not after a while."""
        if self._running and ray.is_initialized():
            self.stop("the engine was closed")
            ray.wait(list(self._running), num_returns=len(self._running), timeout=GOODBYE_SECONDS)
        actors, self._actors, self._running = self._actors, {}, {}
        if ray.is_initialized():
            for actor in actors.values():
                ray.kill(actor)

    def _take(self, reference: Any) -> None:
        """A participant has ended: keep what it leaves, and let the master know."""
        name = self._running.pop(reference)
        try:
            self._endings.report(name, ray.get(reference))
        except RayTaskError as error:
            self._endings.fail(name, error.cause if error.cause is not None else error)
        except RayActorError as error:
            self._endings.fail(name, f"its process died: {str(error).strip().splitlines()[0]}")
        self._tell_others(name, failed=name in self._endings.failures)

    def _tell_others(self, name: str, *, failed: bool) -> None:
        """Who failed is waited for no longer. In virtual time a node that ended well has told so at
        the hub, at a time that can be repeated.
        """
        if isinstance(self._times, RemoteTimes):
            if not failed:
                return
            self._times.actor.remove.remote(name)
        master = self._master_name
        if master is not None and name != master and master in self._running.values():
            self._actors[master].ended.remote(name, failed=failed)

    def _replace(self, name: str, back: Micros | None) -> None:
        """A node is to die now, as the scenario says: kill its process, and start the next one
        unless it dies for good.
        """
        times = self._times
        assert isinstance(times, RemoteTimes)
        self._next_death = times.actor.next_death.remote()
        self._running = {ref: who for ref, who in self._running.items() if who != name}
        ray.kill(self._actors.pop(name))
        self._endings.crash(name, for_good=back is None)
        if back is not None:
            actor = self._actors[name] = self._node_actor(successor(self._plans[name]))
            incarnation = self._endings.crashes[name]
            self._running[actor.run.remote(times, incarnation=incarnation)] = name

    def _node_actor(self, plan: NodePlan) -> Any:
        return NodeActor.remote(
            plan, log_file=self._logs / f"{plan.node_id}.log", log_level=self._log_level
        )

    def _renew(self) -> list[Event]:
        """Ask everybody at once; who has died or is late keeps its last status."""
        asked = {
            name: actor.look.remote()
            for name, actor in self._actors.items()
            if not self._is_dead(name)
        }
        ray.wait(list(asked.values()), num_returns=len(asked), timeout=ANSWER_SECONDS)
        events: list[Event] = []
        for name, reference in asked.items():
            try:
                self._statuses[name], new = ray.get(reference, timeout=0.1)
                events += new
            except (RayError, GetTimeoutError) as error:
                logger.debug("%s did not answer: %s", name, error)
        return events

    def _is_dead(self, name: str) -> bool:
        return "its process died" in self._endings.failures.get(name, "")


def _get(references: list[Any]) -> None:
    """Wait for all; what one of them raised comes up as it was raised there."""
    try:
        ray.get(references)
    except RayTaskError as error:
        raise (error.cause if isinstance(error.cause, Exception) else error) from None
