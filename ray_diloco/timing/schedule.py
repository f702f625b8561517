"""The order of a virtual run, as pure data: claims go in, grants come out.

A *participant* (a node or the master) either computes or has asked. Either way it claims a time
before which it will access nothing. The earliest access that was asked for is granted once
everybody else's claim is later; equal times are ordered by priority, then by participant. From its
grant until its next claim the participant counts as computing at the granted time, so that accesses
exclude each other and nobody can be passed.

A participant may also carry *watches* (idle polls): ticks of a grid that matter only after a write
that it has not seen. Before such a write a watch holds nobody up; after it, it counts as a claim
for its first tick after the write.

And it may have transfers in flight over shared links: the end of each counts as a claim, and moves
away as others begin. One whose participant has left keeps its share until it would have ended.

There are no threads here and no real time: whoever wraps a `Schedule` calls it under one lock and
delivers the grants, each to its participant.
"""

import hashlib
import heapq

from ray_diloco.protocol.clock import Micros
from ray_diloco.timing.claims import START, Ask, Claim, Grant, Watch
from ray_diloco.timing.seat import Seat, describe
from ray_diloco.timing.shared_links import SharedLinks


class Schedule:
    """All participants of one run. Raises RuntimeError when one breaks its word (our own bug)."""

    def __init__(self, *, header: str = "") -> None:
        """``header``: what else the trace hash covers."""
        self._seats: dict[str, Seat] = {}
        self._held: dict[tuple[str, int], Claim] = {}
        self._heap: list[tuple[int, int, int, str, int, Seat]] = []
        self._watching: dict[str, Seat] = {}
        self._links = SharedLinks()
        self._begun = 0
        self._computing = 0
        self._writes: list[Micros] = []
        self._trace = hashlib.sha256(header.encode())
        self.frontier = START
        """The time of the latest grant."""
        self.accesses = 0
        """How many accesses were granted."""

    def register(self, participant: str, at: Micros = START) -> None:
        """A participant that will access nothing before ``at``; before it says anything, it counts
        as computing. All must be registered before time can pass their ``at``.
        """
        if participant in self._seats:
            raise RuntimeError(f"participant {participant!r} is registered already")
        if at < self.frontier:
            raise RuntimeError(f"{participant!r} joins at {at}, but it is {self.frontier}")
        seat = Seat(participant, at, at)
        self._seats[participant] = seat
        self._computing += 1
        self._place(seat, at)

    def apply(self, claim: Claim) -> list[Grant]:
        """Takes a participant's next message. One that comes before its predecessors is held until
        they have come; one that came already changes nothing.
        """
        seat = self._seats.get(claim.participant)
        grants: list[Grant] = []
        if seat is None:
            raise RuntimeError(f"participant {claim.participant!r} is not registered, or has left")
        if claim.number <= seat.number:
            return grants
        if claim.number > seat.number + 1:
            self._held[claim.participant, claim.number] = claim
            return grants
        following: Claim | None = claim
        while following is not None:
            self._take(seat, following, grants)
            following = self._held.pop((seat.name, seat.number + 1), None) if self._held else None
        self._settle(grants)
        return grants

    def interrupt(self, participant: str) -> list[Grant]:
        """Ends the participant's rest, or the next one when it does not rest. Its time is then
        that of the latest grant, or what it promised: nobody's past changes.
        """
        seat = self._seats.get(participant)
        grants: list[Grant] = []
        if seat is not None:
            seat.poked = True
            ask = seat.ask
            if ask is not None and ask.kind == "rest":
                self._end_rest(seat, grants)
        return grants

    def remove(self, participant: str) -> list[Grant]:
        """Who died without a word leaves, whatever it computed or waited for."""
        grants: list[Grant] = []
        seat = self._seats.get(participant)
        if seat is not None:
            self._leave(seat, None)
            self._settle(grants)
        return grants

    def trace_hash(self) -> str:
        """sha256 over the header and every access granted so far: time, participant, label."""
        return self._trace.copy().hexdigest()

    def describe(self) -> str:
        """Who waits for what, in one line; of many, those whom the others wait for."""
        return describe(self._seats.values())

    # -- a claim comes in --------------------------------------------------------------------------

    def _take(self, seat: Seat, claim: Claim, grants: list[Grant]) -> None:
        if claim.leaves:
            self._leave(seat, claim.time)
            return
        if seat.ask is not None:
            raise RuntimeError(f"{seat.name!r} claims while it waits for {seat.ask.label!r}")
        rests = claim.ask is not None and claim.ask.kind == "rest"
        if claim.time is not None and claim.time < seat.floor and not rests:
            raise RuntimeError(
                f"{seat.name!r} claims {claim.time}, but promised nothing before {seat.floor}"
            )
        seat.time, seat.ask, seat.number = claim.time, claim.ask, claim.number
        self._watch(seat, claim.watches)
        if claim.ask is not None:
            self._computing -= 1
            if seat.poked and rests:
                self._end_rest(seat, grants)
                return
        self._weigh(seat, grants)

    def _leave(self, seat: Seat, back: Micros | None) -> None:
        """Whatever it computed or waited for. ``back``: when its next incarnation joins."""
        del self._seats[seat.name]
        if seat.ask is None:
            self._computing -= 1
        seat.version += 1
        self._watch(seat, ())
        for number in [number for name, number in self._held if name == seat.name]:
            del self._held[seat.name, number]
        if back is not None:
            self.register(seat.name, back)

    def _watch(self, seat: Seat, watches: tuple[Watch, ...]) -> None:
        seat.watches = watches
        if watches:
            self._watching[seat.name] = seat
        elif self._watching:
            self._watching.pop(seat.name, None)

    def _weigh(self, seat: Seat, grants: list[Grant]) -> None:
        """Finds the seat's due time from its claim and from the watches that have fired."""
        time = seat.time
        landing = self._landing(seat)
        if landing is not None and _comes_first(landing[0], time):
            time = landing[0]
        if seat.watches:
            tick, index = self._fired(seat.watches)
            if tick is not None and _comes_first(tick, time):
                if seat.ask is not None:
                    self._grant(seat, tick, grants, fired=index)
                    return
                time = tick
        if seat.ask is None and time is not None:
            seat.floor = time
        self._place(seat, time)

    def _fired(self, watches: tuple[Watch, ...]) -> tuple[Micros | None, int]:
        """The earliest tick after an unseen write, and whose it is."""
        ticks = [
            (watch.first_tick_after(self._writes[watch.seen]), index)
            for index, watch in enumerate(watches)
            if watch.seen < len(self._writes)
        ]
        return min(ticks) if ticks else (None, -1)

    def _place(self, seat: Seat, time: Micros | None) -> None:
        """Puts the seat in line; without a time it holds nobody up. Computing goes before asking
        at one time: who computes may still ask for something with a lower priority.
        """
        seat.due = time
        seat.version += 1
        if time is not None:
            ask = seat.ask
            asks, priority = (0, 0) if ask is None else (1, ask.priority)
            heapq.heappush(self._heap, (time, asks, priority, seat.name, seat.version, seat))

    # -- grants go out -----------------------------------------------------------------------------

    def _settle(self, grants: list[Grant]) -> None:
        """Grants what may be granted now; finds out when nothing ever can be."""
        heap = self._heap
        while heap:
            time, asks, _, _, version, seat = heap[0]
            if version != seat.version:
                heapq.heappop(heap)
            elif asks:
                heapq.heappop(heap)
                self._let_go_on(seat, Micros(time), grants)
            else:
                break
        if not self._computing and self._seats:
            self._give_up(grants)

    def _let_go_on(self, seat: Seat, time: Micros, grants: list[Grant]) -> None:
        """With what it asked for, or because a transfer of its ends first."""
        landing = self._landing(seat)
        if landing is None or landing[0] > time:
            self._grant(seat, time, grants)
            return
        self._links.forget(seat.flows.pop(landing[1]))
        self.frontier = max(self.frontier, time)
        self._answer(seat, time, grants, landed=landing[1])

    def _landing(self, seat: Seat) -> tuple[Micros, str] | None:
        """The transfer of its that ends first, as things stand."""
        ends = [(self._links.end(key), label) for label, key in seat.flows.items()]
        return min(ends) if ends else None

    def _begin(self, seat: Seat, ask: Ask, time: Micros, grants: list[Grant]) -> None:
        """A transfer begins, and delays others."""
        assert ask.flow is not None
        self._begun += 1
        seat.flows[ask.label] = self._begun
        self._links.begin(self._begun, ask.flow, time)
        for other in self._seats.values():
            if other.flows and other is not seat:
                self._weigh(other, grants)

    def _grant(
        self, seat: Seat, time: Micros, grants: list[Grant], fired: int | None = None
    ) -> None:
        ask = seat.ask
        assert ask is not None
        self.frontier = max(self.frontier, time) if fired is None else self.frontier
        wrote = False
        if fired is None and ask.kind == "access":
            self.accesses += 1
            self._trace.update(f"{time} {seat.name} {ask.label}\n".encode())
            wrote = ask.writes
            if ask.flow is not None:
                self._begin(seat, ask, time, grants)
            if wrote:
                self._writes.append(time)
        self._answer(seat, time, grants, fired=fired)
        if wrote:
            for watcher in list(self._watching.values()):
                self._weigh(watcher, grants)

    def _answer(
        self,
        seat: Seat,
        time: Micros,
        grants: list[Grant],
        *,
        fired: int | None = None,
        interrupted: bool = False,
        error: str | None = None,
        landed: str | None = None,
    ) -> None:
        writes, ask = len(self._writes), seat.ask
        ends = tuple((label, self._links.end(key)) for label, key in seat.flows.items())
        grants.append(
            Grant(seat.name, seat.number, time, writes, fired, interrupted, error, landed, ends)
        )
        came_first = fired is not None or landed is not None
        rested = ask is not None and ask.kind == "rest" and not came_first
        seat.floor = max(seat.floor, time) if rested else time
        seat.time, seat.ask = seat.floor, None
        self._watch(seat, ())
        self._computing += 1
        self._place(seat, seat.floor)

    def _end_rest(self, seat: Seat, grants: list[Grant]) -> None:
        seat.poked = False
        self._answer(seat, max(seat.floor, self.frontier), grants, interrupted=True)

    def _give_up(self, grants: list[Grant]) -> None:
        error = f"virtual time stands still: {self.describe()}"
        for _, seat in sorted(self._seats.items()):
            self._answer(seat, max(seat.floor, self.frontier), grants, error=error)


def _comes_first(tick: Micros, time: Micros | None) -> bool:
    return time is None or tick <= time
