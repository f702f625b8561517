"""Virtual time for participants that are threads of one process."""

import logging
import queue
import random
import threading
from collections.abc import Callable, Iterable

from ray_diloco.protocol.clock import Micros
from ray_diloco.timing.claims import START, Claim, Grant
from ray_diloco.timing.profile import NodeProfile
from ray_diloco.timing.schedule import Schedule
from ray_diloco.timing.virtual_port import VirtualPort
from ray_diloco.timing.virtual_utc import utc_at

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 60.0


class VirtualClock:
    """The clock that all participants of one process share. Its own time is that of the latest
    grant: inside an access, the time of that access.
    """

    def __init__(
        self,
        participants: Iterable[str],
        *,
        header: str = "",
        yield_to_others: Callable[[], None] | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """All ``participants`` count from the start, so that it does not matter in which order
        their threads begin. ``header``: what else the trace hash covers. ``yield_to_others`` is
        called before every message: tests disturb the order of threads with it.
        ``patience_seconds``: when nobody was granted anything for so long in real time, the log
        gets a line about who waits for whom.
        """
        self._lock = threading.Lock()
        self._schedule = Schedule(header=header)
        self._answers: dict[str, queue.SimpleQueue[Grant]] = {}
        self._joined: dict[str, Micros] = {}
        self._granted = 0
        self._told = -1
        self._yield_to_others = yield_to_others
        self._patience_seconds = patience_seconds
        for participant in participants:
            self.register(participant)

    def register(self, participant: str, at: Micros = START) -> None:
        """One more participant, which accesses nothing before ``at``. It must not be later yet."""
        with self._lock:
            self._schedule.register(participant, at)
            self._answers[participant] = queue.SimpleQueue()
            self._joined[participant] = at

    def port(
        self,
        participant: str,
        *,
        profile: NodeProfile | None = None,
        rng: random.Random | None = None,
    ) -> VirtualPort:
        """The port of a registered participant, for its own thread; close it in a ``finally``, or
        the others wait for ever.
        """
        started_at = self._joined[participant]
        return VirtualPort(self, participant, profile=profile, rng=rng, started_at=started_at)

    def now(self) -> Micros:
        return self._schedule.frontier

    def utc(self) -> str:
        return utc_at(self._schedule.frontier)

    @property
    def accesses(self) -> int:
        """How many accesses were granted so far."""
        return self._schedule.accesses

    def trace_hash(self) -> str:
        """sha256 over the header and all accesses so far: time, participant, lane, in order."""
        with self._lock:
            return self._schedule.trace_hash()

    # -- for ports ---------------------------------------------------------------------------------

    def tell(self, claim: Claim) -> None:
        """Delivers a claim that does not ask."""
        self._apply(claim)

    def ask(self, claim: Claim) -> Grant:
        """Delivers a claim that asks, and blocks until it is answered."""
        self._apply(claim)
        answers = self._answers[claim.participant]
        while True:
            before = self._granted
            try:
                grant = answers.get(timeout=self._patience_seconds)
                if grant.number == claim.number:
                    return grant
            except queue.Empty:
                self._complain(claim.participant, before)

    def _complain(self, participant: str, before: int) -> None:
        """Once, when nothing was granted since ``before`` grants."""
        with self._lock:
            if self._granted != before or self._told == before:
                return
            self._told = before
            described = self._schedule.describe()
        logger.warning("%s still waits: %s", participant, described)

    def crashed(self, claim: Claim) -> None:
        """The last claim of an incarnation; its successor's port starts where it says."""
        if claim.time is not None:
            self._joined[claim.participant] = claim.time
        self._apply(claim)

    def interrupt(self, participant: str) -> None:
        """Ends the participant's present or next rest. From any thread."""
        with self._lock:
            self._deliver(self._schedule.interrupt(participant))

    def _apply(self, claim: Claim) -> None:
        if self._yield_to_others is not None:
            self._yield_to_others()
        with self._lock:
            self._deliver(self._schedule.apply(claim))

    def _deliver(self, grants: list[Grant]) -> None:
        self._granted += len(grants)
        for grant in grants:
            self._answers[grant.participant].put(grant)
