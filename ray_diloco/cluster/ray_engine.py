"""engine=ray: each node is an actor, a master actor runs the outer loop. Needs a Ray session."""

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from ray_diloco.cluster.clock_actor import RemoteTimes
from ray_diloco.cluster.crew import Crew
from ray_diloco.cluster.deaths import cause_of
from ray_diloco.cluster.endings import Endings
from ray_diloco.cluster.engine import Ending, View
from ray_diloco.cluster.participants import OpenTimes, master_name, starts_of, successor
from ray_diloco.cluster.supervision import Supervisor
from ray_diloco.errors import ConfigError, NodeInUseError, TrainingError
from ray_diloco.master.plan import MasterPlan
from ray_diloco.node.plan import NodePlan
from ray_diloco.protocol.clock import Micros, micros
from ray_diloco.protocol.run import Event, MasterStatus, NodeStatus
from ray_diloco.timing.times import Times
from ray_diloco.timing.wall import WallClock

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
"""How long a status is waited for; an actor that is slower keeps its last one."""
GOODBYE_SECONDS = 5.0
START_SECONDS = 600.0


class RayEngine:
    """Actors that ask Ray for no CPU, so that any number of them starts on any machine."""

    def __init__(
        self,
        open_times: OpenTimes,
        crew: Crew,
        *,
        start_seconds: float = START_SECONDS,
        restarts: int = 0,
    ) -> None:
        """``start_seconds``: within so many all must have started, and there must be a machine for
        one that has lost its own. ``restarts``: how often a participant whose process has died is
        started again, in wall time.
        """
        self._open_times = open_times
        self._crew = crew
        self._start_seconds = start_seconds
        self._supervisor = Supervisor(most=restarts, patience=micros(start_seconds))
        self._clock = WallClock()
        self._actors: dict[str, Any] = {}
        self._plans: dict[str, NodePlan | MasterPlan] = {}
        self._master_name: str | None = None
        self._running: dict[Any, str] = {}
        self._times: Times | None = None
        self._next_death: Any = None
        self._stop_asked: str | None = None
        self._endings = Endings()
        self._statuses: dict[str, NodeStatus | MasterStatus] = {}
        self._events: list[Event] = []

    def start(self, nodes: Sequence[NodePlan], master: MasterPlan | None) -> None:
        self._plans = {plan.node_id: plan for plan in nodes}
        self._statuses = {name: NodeStatus(node_id=name) for name in self._plans}
        if master is not None:
            name = self._master_name = master_name(master)
            self._plans[name], self._statuses[name] = master, MasterStatus()
        self._actors = {name: self._crew.actor(plan) for name, plan in self._plans.items()}
        self._await_ready()
        times = self._times = self._open_times(starts_of(nodes, master))
        if isinstance(times, RemoteTimes):
            self._next_death = times.actor.next_death.remote()
        for name, actor in self._actors.items():
            self._running[actor.run.remote(times)] = name

    def _await_ready(self) -> None:
        asked = {actor.ready.remote(): name for name, actor in self._actors.items()}
        _, late = ray.wait(list(asked), num_returns=len(asked), timeout=self._start_seconds)
        if late:
            names = ", ".join(asked[each] for each in late)
            raise TrainingError(
                f"{names} did not start within ray.start_seconds={self._start_seconds:g}: Ray may "
                "have no machine that is free for what they ask for, or loading takes longer"
            )
        _get(list(asked))

    def look(self, timeout: float) -> View:
        for name in self._supervisor.take_due(self._clock.now()):
            self._start_again(name)
        done = self._await(timeout)
        for reference in done:
            if reference != self._next_death:
                self._take(reference)
        self._renew()
        death = self._next_death
        if death is not None and death in done:
            self._follow(death)
        events, self._events = self._events, []
        return View(
            nodes=tuple(each for each in self._statuses.values() if isinstance(each, NodeStatus)),
            master=self._status_of_master(),
            events=tuple(events),
            ended=not self._running and not self._supervisor.waiting,
        )

    def _await(self, timeout: float) -> list[Any]:
        """What has ended, waiting for at most ``timeout`` seconds."""
        if self._running:
            deaths = [self._next_death] if self._next_death is not None else []
            return ray.wait([*deaths, *self._running], num_returns=1, timeout=timeout)[0]
        if self._supervisor.waiting:
            threading.Event().wait(timeout)
        return []

    def _status_of_master(self) -> MasterStatus | None:
        status = self._statuses.get(self._master_name or "")
        return status if isinstance(status, MasterStatus) else None

    def stop(self, reason: str) -> None:
        self._stop_asked = reason
        self._supervisor.hasten(self._clock.now())
        for name in self._running.values():
            self._actors[name].stop.remote(reason)

    def finish(self) -> Ending:
        return replace(self._endings.ending(), restarts=self._supervisor.restarts())

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
            cause = error.cause if error.cause is not None else error
            # Its predecessor, which was out of reach and is to be killed, may not be gone yet.
            early = isinstance(cause, NodeInUseError) and name in self._supervisor.reasons
            if early and self._died(name, str(cause)):
                return
            self._endings.fail(name, cause)
        except RayError as error:
            if self._died(name, cause_of(error)):
                return
        self._tell_others(name, failed=name in self._endings.failures)

    # -- who has died ------------------------------------------------------------------------------

    def _died(self, name: str, reason: str) -> bool:
        """Whether it will be started again: in wall time, unless it has been too often. In virtual
        time only the scenario brings somebody back.
        """
        if (actor := self._actors.pop(name, None)) is not None:
            ray.kill(actor)  # it may be out of reach, and not dead
        back = None
        if not isinstance(self._times, RemoteTimes):
            back = self._supervisor.died(name, reason, now=self._clock.now())
        if back is None:
            self._endings.fail(name, reason)
            return False
        logger.warning("%s: %s; it will be started again", name, reason)
        status = self._statuses[name] = replace(self._statuses[name], state="restarting")
        if isinstance(status, NodeStatus):
            crash = {"event": "crashed", "participant": name, "at": status.now}
            self._events.append(crash | {"local_step": status.local_step, "reason": reason})
        return True

    def _start_again(self, name: str) -> None:
        """Somewhere that lives. It goes on from what its disk and the hub have of it."""
        try:
            self._crew.move(name)
        except ConfigError as error:
            ends = self._stop_asked is not None
            if ends or self._supervisor.waits(name, now=self._clock.now()) is None:
                self._endings.fail(name, str(error))
                self._tell_others(name, failed=True)
            return
        plan = self._plans[name]
        plan = successor(plan) if isinstance(plan, NodePlan) else plan
        actor = self._actors[name] = self._crew.actor(plan)
        if self._stop_asked is not None:
            actor.stop.remote(self._stop_asked)
        if name == self._master_name:
            self._tell_of_ended(actor)
        self._running[actor.run.remote(self._times)] = name

    def _tell_of_ended(self, master: Any) -> None:
        """What its predecessor was told already."""
        for name in self._plans:
            if name != self._master_name and self._endings.ended(name):
                master.ended.remote(name, failed=name in self._endings.failures)

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

    def _follow(self, death: Any) -> None:
        """What the clock says of who is to die. When the clock itself has died nothing can go on:
        everybody ends by it, and says so.
        """
        try:
            name, back = ray.get(death)
        except RayError as error:
            self._next_death = None
            logger.error("the virtual clock has died: %s", cause_of(error))
        else:
            self._replace(name, back)

    def _replace(self, name: str, back: Micros | None) -> None:
        """A node is to die now, as the scenario says: kill its process, and start the next one
        unless it dies for good.
        """
        times, plan = self._times, self._plans[name]
        assert isinstance(times, RemoteTimes)
        assert isinstance(plan, NodePlan)
        self._next_death = times.actor.next_death.remote()
        self._running = {ref: who for ref, who in self._running.items() if who != name}
        actor = self._actors.pop(name)
        self._statuses[name], last_words = ray.get(actor.died.remote(back))
        self._events += last_words
        ray.kill(actor)
        self._endings.crash(name, for_good=back is None)
        if back is not None:
            actor = self._actors[name] = self._crew.actor(successor(plan))
            incarnation = self._endings.crashes[name]
            self._running[actor.run.remote(times, incarnation=incarnation)] = name

    def _renew(self) -> None:
        """Ask everybody at once; who has died or is late keeps its last status."""
        asked = {name: actor.look.remote() for name, actor in self._actors.items()}
        ray.wait(list(asked.values()), num_returns=len(asked), timeout=ANSWER_SECONDS)
        for name, reference in asked.items():
            try:
                self._statuses[name], new = ray.get(reference, timeout=0.1)
                self._events += new
            except (RayError, GetTimeoutError) as error:
                logger.debug("%s did not answer: %s", name, error)


def _get(references: list[Any]) -> None:
    """Wait for all; what one of them raised comes up as it was raised there."""
    try:
        ray.get(references)
    except RayTaskError as error:
        raise (error.cause if isinstance(error.cause, Exception) else error) from None
    except RayError as error:
        raise TrainingError(f"an actor died while it was started: {cause_of(error)}") from None
