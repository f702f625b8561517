# ruff: noqa: ARG002 - scripts need little of what they are given
"""A pool whose work ends as a script says, and a clock that moves with each wait."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ray_diloco.cluster.capacity import Capacity
from ray_diloco.cluster.pool import Ended
from ray_diloco.experiment.sweep.rows import Status
from ray_diloco.experiment.sweep.work import Outcome, Task
from ray_diloco.protocol.clock import Micros, micros

STEP = micros(1.0)


class StepClock:
    def __init__(self) -> None:
        self.micros = 0

    def now(self) -> Micros:
        return Micros(self.micros)

    def utc(self) -> str:
        return f"at {self.micros}"


def done(loss: float = 1.0, seed: int = 0, **fields) -> Outcome:
    given = {"status": Status.done, "seconds": 2.0, "numbers": {"eval_loss": loss, "seed": seed}}
    return Outcome(**given | fields)


def ended(outcome: Outcome | str, ticket: int) -> Ended:
    if isinstance(outcome, Outcome):
        return Ended(ticket=ticket, fate="returned", value=outcome)
    return Ended(ticket=ticket, fate=outcome, error=OSError("so Ray says\nat length"))


@dataclass
class ScriptedPool:
    """``script``: what a task comes to: an outcome, a fate, or None while it goes on."""

    script: Callable[[Task], Outcome | str | None]
    clock: StepClock
    started: list[tuple[Task, float, Any]] = field(default_factory=list)
    freed: list[tuple[int, bool]] = field(default_factory=list)
    stopped: list[tuple[int, str]] = field(default_factory=list)
    most: int = 0
    _running: dict[int, Task] = field(default_factory=dict)
    _begun: set[int] = field(default_factory=set)

    def start(self, ticket, work, args, *, cpus, bundles=()) -> None:
        (task,) = args
        self.started.append((task, cpus, bundles))
        self._running[ticket] = task
        self.most = max(self.most, len(self._running))

    def wait(self, timeout):
        self.clock.micros += STEP
        new = [ticket for ticket in self._running if ticket not in self._begun]
        self._begun.update(new)
        if new:
            return new, []
        found = [(ticket, self.script(task)) for ticket, task in self._running.items()]
        return [], [ended(what, ticket) for ticket, what in found if what is not None]

    def told(self, tickets):
        return {ticket: [f"told by {ticket}"] for ticket in tickets}

    def stop(self, ticket, reason) -> None:
        self.stopped.append((ticket, reason))

    def free(self, ticket, *, reuse) -> None:
        del self._running[ticket]
        self.freed.append((ticket, reuse))


@dataclass
class ScriptedArena:
    pool: ScriptedPool
    capacity: Capacity = field(
        default_factory=lambda: Capacity(cpus=2.0, memory=2.0**40, largest=2.0)
    )

    def hub_for(self, config):
        return None
