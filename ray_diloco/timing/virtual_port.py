"""The port of one participant in virtual time.

The participant's own thread drives its lanes: whenever it lets time pass (`after_step`, `wait`,
`collect`) every effect that is due by then is carried out, in the order of (time, start of the
lane). Only an `Access` needs the others: the thread blocks until it is granted. How long anything
really takes is never looked at.
"""

import itertools
import random
import threading
from typing import Any

from ray_diloco.errors import TrainingError
from ray_diloco.protocol.clock import (
    Access,
    Compute,
    Effect,
    Idle,
    Lane,
    LaneOutcome,
    Micros,
    Sleep,
    Transfer,
)
from ray_diloco.timing.churn import ScriptedCrash, next_outage
from ray_diloco.timing.claims import START, Ask, Claim, Grant, Turns, Watch
from ray_diloco.timing.profile import NodeProfile
from ray_diloco.timing.step_times import StepTimes
from ray_diloco.timing.virtual_lane import VirtualLane
from ray_diloco.timing.virtual_utc import utc_at


class VirtualPort:
    """What one participant may ask of virtual time; see `ray_diloco.protocol.clock.Port`."""

    def __init__(
        self,
        turns: Turns,
        participant: str,
        *,
        profile: NodeProfile | None = None,
        rng: random.Random | None = None,
        started_at: Micros = START,
    ) -> None:
        """``profile``: steps, link and outages (None: the default profile, for who does not train).
        ``rng``: for its jitter. ``started_at``: the time with which the participant was registered.
        Whatever lets time pass raises ScriptedCrash when the profile's next outage is reached.
        """
        self._turns = turns
        self._participant = participant
        self._profile = profile or NodeProfile()
        self._link = self._profile.link
        self._times = StepTimes(self._profile, rng or random.Random(0))
        self._now = started_at
        self._outage = next_outage(profile, started_at)
        self._messages = itertools.count()
        self._orders = itertools.count()
        self._promised: tuple[Micros, tuple[Watch, ...]] = (started_at, ())
        self._horizon: Micros | None = started_at
        self._step_ends: Micros | None = None
        self._lanes: dict[str, VirtualLane] = {}
        self._finished: list[LaneOutcome] = []
        self._seen: dict[str, int] = {}
        self._memos: dict[str, tuple[int, Any]] = {}
        self._interrupted = False
        self._was_interrupted = False
        self._wait_ends = False
        self._closed = False
        self._thread: int | None = None

    def now(self) -> Micros:
        """Inside a lane: the lane's time."""
        return self._now

    def utc(self) -> str:
        return utc_at(self._now)

    # -- steps -------------------------------------------------------------------------------------

    def before_step(self, quiet_steps: int, quiet_until: Micros | None = None) -> None:
        self._thread = threading.get_ident()
        self._promise(self._times.quiet_end(self._now, quiet_steps, quiet_until))
        self._step_ends = Micros(self._now + self._times.take())

    def after_step(self) -> None:
        if self._step_ends is None:
            raise RuntimeError("after_step() without before_step()")
        end, self._step_ends = self._step_ends, None
        self._drive(end)

    # -- lanes -------------------------------------------------------------------------------------

    def start(self, name: str, lane: Lane) -> None:
        """RuntimeError too when `before_step` promised that no lane would start yet."""
        if self._closed:
            raise RuntimeError(f"lane {name!r} cannot start: the port is closed")
        if name in self._lanes:
            raise RuntimeError(f"lane {name!r} is still running")
        self._thread = threading.get_ident()
        self._keep_promise(name)
        order, seen = next(self._orders), self._seen.get(name)
        self._lanes[name] = VirtualLane(name, order, lane, self._now, seen=seen)

    def _keep_promise(self, name: str) -> None:
        promised, _ = self._promised
        if self._now < promised and not self._was_interrupted:
            raise RuntimeError(
                f"lane {name!r} starts at {self._now}, but none was to start before {promised}"
            )
        self._now = max(self._now, promised)

    def collect(self) -> list[LaneOutcome]:
        self._drive(self._now)
        finished, self._finished = self._finished, []
        return finished

    def wait(self, until: Micros | None = None) -> None:
        """Waits for the others as well: ``until`` is not over before nobody can access anything
        earlier. TrainingError when nothing can ever happen, which names who waits for what.
        """
        self._thread = threading.get_ident()
        while not self._finished and not self._closed:
            if self._wait_ends:
                self._wait_ends = False
                return
            if until is not None and until < self._now:
                return
            if not self._advance(until, rest=True):
                self._now = self._now if until is None else max(self._now, until)
                return

    def interrupt(self) -> None:
        """From the participant's own thread the run stays repeatable; from another one it depends
        on how far the others were.
        """
        self._interrupted = self._was_interrupted = True
        self._wait_ends = True
        if self._thread != threading.get_ident():
            self._turns.interrupt(self._participant)

    def close(self) -> None:
        """Lanes that still run are closed where they are, and the others no longer wait for this
        participant. What finished can still be collected. Closing twice is allowed.
        """
        if self._closed:
            return
        self._closed = True
        lanes, self._lanes = self._lanes, {}
        try:
            for lane in lanes.values():
                lane.generator.close()
        finally:
            self._turns.tell(self._claim(None, leaves=True))

    # -- driving -----------------------------------------------------------------------------------

    def _drive(self, horizon: Micros) -> None:
        """Carries out every effect that is due at or before ``horizon``; then it is that time."""
        while not self._closed and self._advance(horizon):
            pass
        self._now = max(self._now, horizon)

    def _advance(self, horizon: Micros | None, *, rest: bool = False) -> bool:
        """Carries out the earliest effect at or before ``horizon`` (None: for ever); False when
        there is none. ``rest``: then wait for the others to get as far as the horizon.
        """
        outage = self._outage
        if outage is None or (horizon is not None and horizon < outage.at):
            return self._carry_out(horizon, rest=rest)
        if not self._carry_out(Micros(outage.at - 1), rest=rest):
            self._closed = True
            self._now = outage.at
            self._turns.crashed(self._claim(outage.until, leaves=True))
            raise ScriptedCrash(self._participant, outage.until)
        return True

    def _carry_out(self, horizon: Micros | None, *, rest: bool) -> bool:
        self._horizon = horizon
        if self._interrupted:
            self._interrupted = False
            self._wake_all()
        lane = self._next_lane(horizon)
        limit = horizon if lane is None else lane.due
        access = None if lane is None else lane.access
        idle = [lane for lane in self._lanes.values() if lane.watch is not None]
        grant = None
        asks = access is not None or (lane is not None and lane.flow is not None)
        if asks or limit is None or (rest and lane is None) or self._may_be_overtaken(limit):
            grant = self._ask(limit, idle, lane)
            if self._moved(grant, idle):
                return True
        if lane is None or limit is None:
            return False
        if lane.flow is not None:
            self._now = limit
            lane.take_off()
            self._note_ends(grant)
            return True
        if access is not None and grant is not None:
            self._now = limit
            self._call(lane, access, grant)
        self._resume(lane, limit)
        return True

    def _next_lane(self, horizon: Micros | None) -> VirtualLane | None:
        """The lane that goes on first, if that is at or before ``horizon``."""
        first: tuple[Micros, int, VirtualLane] | None = None
        for lane in self._lanes.values():
            due = lane.due
            if due is None or (horizon is not None and due > horizon):
                continue
            if first is None or (due, lane.order) < first[:2]:
                first = (due, lane.order, lane)
        return None if first is None else first[2]

    def _moved(self, grant: Grant, idle: list[VirtualLane]) -> bool:
        """Something came before what was asked for: an interrupt, the end of a transfer, or a tick
        of an idle lane.
        """
        self._note_ends(grant)
        if grant.interrupted:
            self._now = max(self._now, grant.time)
            return True
        if grant.landed is not None:
            self._resume(self._lanes[grant.landed], grant.time)
            return True
        if grant.fired is not None:
            self._resume(idle[grant.fired], grant.time)
            return True
        for lane in idle:
            lane.no_tick_up_to(grant.time)
        return False

    def _may_be_overtaken(self, limit: Micros) -> bool:
        """A lane whose next move only the schedule knows could make it by then."""
        return any(
            lane.next_tick <= limit
            for lane in self._lanes.values()
            if lane.flying or lane.watch is not None
        )

    def _note_ends(self, grant: Grant | None) -> None:
        for label, end in grant.ends if grant is not None else ():
            self._lanes[label].next_tick = end

    def _resume(self, lane: VirtualLane, at: Micros) -> None:
        """The lane goes on at its time, up to its next effect or its end."""
        self._now = at
        try:
            yielded = lane.resume(at)
        except BaseException:
            self._lanes.pop(lane.name, None)
            raise
        if isinstance(yielded, LaneOutcome):
            self._lanes.pop(lane.name, None)
            self._finished.append(yielded)
        else:
            self._schedule(lane, yielded)

    def _schedule(self, lane: VirtualLane, effect: Effect) -> None:
        """When the effect is over."""
        now = self._now
        match effect:
            case Sleep():
                lane.due = Micros(now + max(0, effect.duration))
            case Idle():
                lane.idle(effect, now)
            case Transfer():
                lane.flow = self._link.flow(effect.direction, effect.size)
                own = self._link.transfer_time(effect.direction, effect.size)
                lane.due = Micros(now + (own if lane.flow is None else self._link.latency))
            case Compute():
                lane.due = Micros(now + max(0, effect.duration))
                if effect.work is not None:
                    self._promise(_earlier(lane.due, self._horizon))
                    lane.perform(effect.work)
            case Access():
                lane.due = now

    def _call(self, lane: VirtualLane, access: Access, grant: Grant) -> None:
        writes, value = self._memos.get(access.memo or "", (-1, None))
        if access.memo is not None and writes == grant.writes:
            lane.value = value
        else:
            lane.perform(access.call)
        if lane.error is not None:
            return
        if access.kind == "look":
            lane.seen = self._seen[lane.name] = grant.writes
        if access.memo is not None:
            self._memos[access.memo] = (grant.writes, lane.value)

    def _wake_all(self) -> None:
        """Ends every pause under way, but not before what was promised."""
        now = max(self._now, self._promised[0])
        for lane in self._lanes.values():
            if isinstance(lane.effect, Sleep | Idle) and (lane.due is None or lane.due > now):
                lane.wake(now)

    # -- talking to the clock ----------------------------------------------------------------------

    def _promise(self, quiet_end: Micros) -> None:
        """Tells the others until when they need not reckon with this participant."""
        dues = [lane.due for lane in self._lanes.values() if lane.due is not None]
        ends = [self._outage.at] if self._outage is not None else []
        time = min([quiet_end, *dues, *ends])
        watches = tuple(lane.watch for lane in self._lanes.values() if lane.watch is not None)
        if (time, watches) != self._promised:
            self._promised = (time, watches)
            self._turns.tell(self._claim(time, watches))

    def _ask(
        self, limit: Micros | None, idle: list[VirtualLane], lane: VirtualLane | None
    ) -> Grant:
        """Blocks until it is ``limit``, with access for ``lane`` if that is what it is about to do,
        or until the tick of an idle lane.
        """
        watches = tuple(other.watch for other in idle if other.watch is not None)
        access = None if lane is None else lane.access
        if lane is not None and access is not None:
            ask = Ask("access", lane.name, access.priority, access.kind == "write")
        elif lane is not None and lane.flow is not None:
            ask = Ask("access", lane.name, flow=lane.flow)
        else:
            flying = [other for other in self._lanes.values() if other.flying]
            ask = Ask("rest", "/".join(other.name for other in [*idle, *flying]) or "time")
        grant = self._turns.ask(self._claim(limit, watches, ask))
        if grant.error is not None:
            raise TrainingError(grant.error)
        kept = ask.kind == "rest" and grant.fired is None and grant.landed is None
        self._promised = (max(self._promised[0], grant.time) if kept else grant.time, ())
        return grant

    def _claim(
        self,
        time: Micros | None,
        watches: tuple[Watch, ...] = (),
        ask: Ask | None = None,
        *,
        leaves: bool = False,
    ) -> Claim:
        number = next(self._messages)
        return Claim(self._participant, number, time, watches, ask, leaves)


def _earlier(due: Micros, horizon: Micros | None) -> Micros:
    return due if horizon is None else min(due, horizon)
