"""When things happen in a run, worked out from a list of events: no threads, no tensors, no hub.

It follows the protocol alone: a master that looks at ticks of its poll interval, nodes that hand
over at inner boundaries, look, fetch and install between two steps. Times are microseconds, rates
bytes per microsecond; whatever happens at one time goes by name, as the order of accesses does.
"""

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

WAITING_POLL = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A node; a rate of None does not limit. ``gone``: when it crashes and when it is back."""

    step: int
    latency: int = 0
    up: Fraction | None = None
    down: Fraction | None = None
    join: int = 0
    gone: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The run. ``hub``: rate of a link that all uploads share. ``blocking``: uploads hold the
    training up. ``delta_sizes``: by node and local step.
    """

    steps: int
    inner_steps: int
    poll: int
    merge: int
    model_size: int
    delta_sizes: dict[tuple[str, int], int]
    blocking: bool = False
    hub: Fraction | None = None
    master: str = "master/master"


class EventList:
    """One run. What it found: ``rounds``, and what each node did and when."""

    def __init__(self, rules: Rules, machines: dict[str, Machine]) -> None:
        self.rules = rules
        self.nodes = {name: Node(self, name, machine) for name, machine in machines.items()}
        self.rounds: list[tuple[int, list[tuple[str, int, int]]]] = []
        self.version = -1
        self.writes: list[int] = []
        self.committed: list[tuple[str, int, int]] = []
        self.closed_at = 0
        self._merged: set[tuple[str, int, int]] = set()
        self._seen = 0
        self._events: list[tuple[int, str, int, int, Callable[[int], None]]] = []
        self._numbers = itertools.count()
        self._flows: dict[int, list] = {}
        self._flows_at = Fraction(0)

    def at(self, time: int, name: str, order: int, call: Callable[[int], None]) -> None:
        heapq.heappush(self._events, (time, name, order, next(self._numbers), call))

    def play(self) -> "EventList":
        """To the end, when nobody has anything left to do."""
        self.at(0, self.rules.master, 0, self._open)
        for name, node in self.nodes.items():
            self.at(node.machine.join, name, 0, node.begin)
            if node.machine.gone:
                self.at(node.machine.gone[0], name, -1, node.crash)
        while self._events:
            time, _, _, _, call = heapq.heappop(self._events)
            call(time)
        return self

    # -- the master --------------------------------------------------------------------------------

    def _open(self, now: int) -> None:
        self.version = 0
        self.writes.append(now)
        self._look(now)

    def _tick(self, now: int) -> None:
        unseen = self.writes[self._seen :]
        if unseen and unseen[0] < now:
            self._look(now)
        else:
            self.at(now + self.rules.poll, self.rules.master, 0, self._tick)

    def _look(self, now: int) -> None:
        self._seen = len(self.writes)
        ready = sorted(set(self.committed) - self._merged)
        if ready:
            self.at(
                now + self.rules.merge,
                self.rules.master,
                0,
                lambda then: self._publish(then, ready),
            )
        elif all(node.done for node in self.nodes.values()):
            self.closed_at = now
        else:
            self.at(now + self.rules.poll, self.rules.master, 0, self._tick)

    def _publish(self, now: int, ready: list[tuple[str, int, int]]) -> None:
        self._merged |= set(ready)
        told = [(name, step, self.version - base) for name, step, base in ready]
        self.version += 1
        self.rounds.append((now, told))
        self.writes.append(now)
        self.at(now + self.rules.poll, self.rules.master, 0, self._tick)

    # -- the link that all uploads share -----------------------------------------------------------

    def share(self, now: int, size: int, node: "Node", landed: Callable[[int], None]) -> None:
        """One more upload: each has an equal part of the link while it lasts."""
        self._flow_until(Fraction(now))
        self._flows[next(self._numbers)] = [Fraction(size), node, landed, 0]
        kept, at = {key: list(flow) for key, flow in self._flows.items()}, self._flows_at
        for key, end in self._flow_until(None).items():
            flow = kept[key]
            flow[3] += 1
            self.at(ceil(end), flow[1].name, 0, lambda t, k=key, v=flow[3]: self._land(k, v, t))
        self._flows, self._flows_at = kept, at

    def _flow_until(self, until: Fraction | None) -> dict[int, Fraction]:
        ends: dict[int, Fraction] = {}
        while flows := {key: flow for key, flow in self._flows.items() if flow[0] > 0}:
            rate = self.rules.hub / len(flows)
            step = min(flow[0] for flow in flows.values()) / rate
            if until is not None and self._flows_at + step > until:
                step = until - self._flows_at
            self._flows_at += step
            for key, flow in flows.items():
                flow[0] -= rate * step
                if flow[0] == 0:
                    ends[key] = self._flows_at
            if self._flows_at == until:
                break
        self._flows_at = self._flows_at if until is None else until
        return ends

    def _land(self, key: int, version: int, now: int) -> None:
        """Unless a later one has moved its end away."""
        if self._flows[key][3] == version:
            self._flow_until(Fraction(now))
            self._flows.pop(key)[2](now)


class Node:
    """One node through all its lives."""

    def __init__(self, run: EventList, name: str, machine: Machine) -> None:
        self.run, self.rules, self.name, self.machine = run, run.rules, name, machine
        self.told: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.steps, self.handed, self.base, self.next_poll = 0, 0, -1, 0
        self.pending: int | None = None
        self.job: tuple[str, int, int] | None = None
        self.kept: tuple[int, int, tuple[str, int, int]] | None = None
        self.outcomes: list[Callable[[int], None]] = []
        self.polling = self.done = False
        self.waits_for: str | None = None
        self.life = 0
        self.first_step = self.last_step = self.busy = 0

    def later(self, time: int, order: int, call: Callable[[int], None]) -> None:
        """In this life only."""
        life = self.life
        self.run.at(time, self.name, order, lambda now: call(now) if life == self.life else None)

    def begin(self, now: int) -> None:
        self.claimed_from = max([c[1] for c in self.run.committed if c[0] == self.name], default=0)
        self.run.writes.append(now)
        self.busy, self.first_step, self.sent = 0, -1, []
        if self.kept is None:
            self.waits_for = "global"
            self._poll(now)
            return
        self.steps, self.base, self.job = self.kept
        self.handed = self.steps
        self._upload(now, self.job)
        self._poll(now)
        self._go_on(now)

    def crash(self, _now: int) -> None:
        self.life += 1
        self.outcomes, self.pending, self.polling, self.waits_for = [], None, False, None
        self.run.at(self.machine.gone[1], self.name, 0, self.begin)

    # -- training ----------------------------------------------------------------------------------

    def _go_on(self, now: int) -> None:
        if self.steps == self.rules.steps:
            self._end(now)
        elif self.rules.blocking and self.job is not None:
            self.waits_for = "upload"
        else:
            self.first_step = now if self.first_step < 0 else self.first_step
            self.later(now + self.machine.step, 1, self._stepped)

    def _stepped(self, now: int) -> None:
        self.steps += 1
        self.busy, self.last_step = self.busy + self.machine.step, now
        self._deliver(now)
        self._install(now)
        boundary = self.steps % self.rules.inner_steps == 0
        if boundary and self.job is not None:
            self.told["boundary_skipped"].append((now, self.steps))
        elif boundary:
            self._hand_over(now)
        if (boundary or now >= self.next_poll) and not self.polling:
            self._poll(now)
        self._go_on(now)

    def _install(self, now: int) -> None:
        if self.pending is not None:
            self.base, self.pending = self.pending, None
            self.told["install"].append((now, self.base))

    def _happened(self, outcome: Callable[[int], None], now: int) -> None:
        """A lane has ended: the node hears of it between two steps, or at once while it waits."""
        self.outcomes.append(outcome)
        if self.waits_for is None:
            return
        self._deliver(now)
        if self.waits_for == "end":
            if self.job is None:
                self._end(now)
            return
        self._install(now)
        if self.base >= 0 and not (self.rules.blocking and self.job is not None):
            self.waits_for = None
            self._go_on(now)

    def _deliver(self, now: int) -> None:
        outcomes, self.outcomes = self.outcomes, []
        for outcome in outcomes:
            outcome(now)

    def _end(self, now: int) -> None:
        self.waits_for = "end"
        if self.job is not None:
            return
        if self.handed < self.steps:
            self._hand_over(now)
        else:
            self.done = True
            self.run.writes.append(now)

    # -- lanes -------------------------------------------------------------------------------------

    def _hand_over(self, now: int) -> None:
        self.job = (self.name, self.steps, self.base)
        self.handed, self.kept = self.steps, (self.steps, self.base, self.job)
        self.told["upload_started"].append((now, self.steps))
        self._upload(now, self.job)

    def _upload(self, now: int, job: tuple[str, int, int]) -> None:
        if job in self.run.committed:
            self.later(now, 0, lambda then: self._happened(self._landed, then))
            return
        size = self.rules.delta_sizes[job[:2]]

        def commit(then: int) -> None:
            self.run.committed.append(job)
            self.run.writes.append(then)
            self.sent.append(job)
            self._happened(self._landed, then)

        if self.rules.hub is None:
            self.later(now + self._takes(size, self.machine.up), 0, commit)
        else:
            self.later(
                now + self.machine.latency, 0, lambda t: self.run.share(t, size, self, commit)
            )

    def _landed(self, _now: int) -> None:
        self.job = None

    def _poll(self, now: int) -> None:
        self.polling = True
        poll = self.rules.poll
        self.next_poll = now + (min(poll, WAITING_POLL) if self.base < 0 else poll)
        self.later(now, 0, self._look)

    def _look(self, now: int) -> None:
        found = self.run.version
        if found > max(self.base, -1 if self.pending is None else self.pending):
            takes = self._takes(self.rules.model_size, self.machine.down)
            self.told["global_fetched"].append((now, found))
            self.later(now + takes, 0, lambda t: self._happened(lambda _: self._got(found), t))
            return
        self._happened(lambda _: self._got(None), now)
        if self.base < 0:
            self.later(self.next_poll, 0, self._poll)

    def _got(self, found: int | None) -> None:
        self.polling = False
        self.pending = self.pending if found is None else found

    def _takes(self, size: int, rate: Fraction | None) -> int:
        return self.machine.latency + (round(size / rate) if rate else 0)
