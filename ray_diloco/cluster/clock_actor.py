"""The virtual clock of a run whose participants are Ray actors, in an actor of its own.

It serves the embedded hub too: inside an access the clock shows the time of that access, so the
hub dates each commit as it would in one process.
"""

import asyncio
import random
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError

from ray_diloco.cluster.hub_service import embedded_hub
from ray_diloco.cluster.placing import beside_this_process
from ray_diloco.errors import TrainingError
from ray_diloco.hub.embedded.server import EmbeddedHub
from ray_diloco.hub.secret import Secret
from ray_diloco.hub.settings import HubSettings
from ray_diloco.protocol.clock import Micros, Port
from ray_diloco.protocol.seeds import seed_of, seeded
from ray_diloco.timing.claims import Claim, Grant
from ray_diloco.timing.profile import NodeProfile
from ray_diloco.timing.schedule import Schedule
from ray_diloco.timing.virtual_port import VirtualPort
from ray_diloco.timing.virtual_utc import utc_at


class _ClockActor:
    """One event loop, so no two messages are taken at once; an ask is answered when its grant
    comes. What a message did wrong comes up in every later ask.
    """

    def __init__(self, *, header: str) -> None:
        self._schedule = Schedule(header=header)
        self._starts: dict[str, Micros] = {}
        self._asked: dict[tuple[str, int], asyncio.Future[Grant]] = {}
        self._deaths: asyncio.Queue[tuple[str, Micros | None]] = asyncio.Queue()
        self._mistake: Exception | None = None
        self._hub: EmbeddedHub | None = None

    # -- for the hub, from its thread --------------------------------------------------------------

    def now(self) -> Micros:
        return self._schedule.frontier

    def utc(self) -> str:
        return utc_at(self._schedule.frontier)

    # -- for the engine ----------------------------------------------------------------------------

    async def start_hub(
        self, folder: Path, settings: HubSettings, *, seed: int, token: Secret
    ) -> str:
        """Listen; gives the endpoint."""
        self._hub = embedded_hub(folder, settings, seed=seed, token=token, clock=self)
        return (await asyncio.to_thread(self._hub.start)).endpoint

    async def restarts(self) -> int:
        """Never: time does not go on without it."""
        return 0

    async def close_hub(self) -> None:
        """Stop serving."""
        if self._hub is not None:
            await asyncio.to_thread(self._hub.close)

    async def register(self, starts: dict[str, Micros]) -> None:
        """All participants, each with the time before which it accesses nothing."""
        for participant, at in starts.items():
            self._schedule.register(participant, at)
        self._starts = dict(starts)

    async def next_death(self) -> tuple[str, Micros | None]:
        """Who has died as the scenario says, and when its next incarnation joins; waits for it."""
        return await self._deaths.get()

    async def remove(self, participant: str) -> None:
        """Its process has died, and the scenario does not know of it."""
        self._deliver(self._schedule.remove(participant))

    async def trace_hash(self) -> str:
        return self._schedule.trace_hash()

    # -- for ports ---------------------------------------------------------------------------------

    async def started_at(self, participant: str) -> Micros:
        """When its present incarnation joined."""
        return self._starts[participant]

    async def tell(self, claim: Claim) -> None:
        self._apply(claim)

    async def ask(self, claim: Claim) -> Grant:
        if self._mistake is not None:
            raise self._mistake
        answer = asyncio.get_running_loop().create_future()
        self._asked[claim.participant, claim.number] = answer
        self._apply(claim)
        return await answer

    async def interrupt(self, participant: str) -> None:
        self._deliver(self._schedule.interrupt(participant))

    async def crashed(self, claim: Claim) -> None:
        """Never returns: the caller's process is killed meanwhile."""
        if claim.time is not None:
            self._starts[claim.participant] = claim.time
        self._apply(claim)
        self._deaths.put_nowait((claim.participant, claim.time))
        await asyncio.get_running_loop().create_future()

    def _apply(self, claim: Claim) -> None:
        try:
            self._deliver(self._schedule.apply(claim))
        except RuntimeError as error:
            self._mistake = error
            for answer in self._asked.values():
                if not answer.done():
                    answer.set_exception(error)

    def _deliver(self, grants: Iterable[Grant]) -> None:
        for grant in grants:
            answer = self._asked.pop((grant.participant, grant.number), None)
            if answer is not None and not answer.done():
                answer.set_result(grant)


actor_class: Any = ray.remote
ClockActor: Any = actor_class(num_cpus=0, max_restarts=0, max_concurrency=10_000)(_ClockActor)


@contextmanager
def clock_actor(header: str) -> Generator[Any, None, None]:
    """The actor of a run's clock, for as long as the context lasts."""
    actor: Any = ClockActor.options(**beside_this_process()).remote(header=header)
    try:
        yield actor
    finally:
        if ray.is_initialized():
            ray.kill(actor)


def trace_hash_of(actor: Any) -> str | None:
    """sha256 over the header and all accesses so far; None when the actor has died."""
    try:
        return ray.get(actor.trace_hash.remote())
    except RayActorError:
        return None


def remote_times(actor: Any, starts: Mapping[str, Micros]) -> "RemoteTimes":
    """Registers all participants, each with the time at which it joins."""
    ray.get(actor.register.remote(dict(starts)))
    return RemoteTimes(actor=actor)


class RemoteClock:
    """The way to the clock's actor for one participant; see `timing.claims.Turns`."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def tell(self, claim: Claim) -> None:
        """Does not wait: the schedule puts what Ray delivers out of order into order."""
        self._actor.tell.remote(claim)

    def ask(self, claim: Claim) -> Grant:
        """TrainingError when the actor has died: nothing can go on without it."""
        try:
            return ray.get(self._actor.ask.remote(claim))
        except RayActorError:
            raise TrainingError("the virtual clock's process died") from None

    def interrupt(self, participant: str) -> None:
        self._actor.interrupt.remote(participant)

    def crashed(self, claim: Claim) -> None:
        ray.get(self._actor.crashed.remote(claim))


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTimes:
    """Simulated time whose clock is an actor; travels to the participants."""

    actor: Any

    @property
    def repeatable(self) -> bool:
        return True

    def port(self, participant: str, *, profile: NodeProfile | None, seed: int) -> Port:
        started_at: Micros = ray.get(self.actor.started_at.remote(participant))
        rng: random.Random = seeded(seed, participant, "steps")
        return VirtualPort(
            RemoteClock(self.actor), participant, profile=profile, rng=rng, started_at=started_at
        )

    def nonce(self, participant: str, *, seed: int, incarnation: int) -> str:
        return f"{seed_of(seed, participant, f'nonce {incarnation}'):016x}"
