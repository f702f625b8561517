"""Processes that do one piece of work after the other: Ray actors that are used again."""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group

from ray_diloco.cluster.deaths import is_of_memory

Bundles = Sequence[dict[str, float]]
Fate = Literal["returned", "raised", "died", "oom"]

ANSWER_SECONDS = 5.0
"""How long a worker's answer is waited for beside its work."""


class Channel:
    """What a piece of work tells while it goes on, and the wish that it may end; for one piece."""

    def __init__(self) -> None:
        self._told: deque[Any] = deque()
        self.wish: str | None = None
        """Why it should end early; None while nobody asks for it."""

    def tell(self, value: Any) -> None:
        self._told.append(value)

    def take(self) -> list[Any]:
        """What was told since the last call."""
        return [self._told.popleft() for _ in range(len(self._told))]


Work = Callable[..., Any]
"""``work(*args, channel=..., gang=...)``; ``gang`` is a placement group, or None."""


class _Worker:
    """``control`` answers while ``run`` works. One piece at a time, each with its own ticket."""

    def __init__(self, preload: Sequence[str]) -> None:
        for module in preload:
            import_module(module)
        self._lock = threading.Lock()
        self._channels: dict[int, Channel] = {}

    def ready(self) -> int:
        """The process id, when all is imported."""
        return os.getpid()

    def run(self, ticket: int, work: Work, args: Sequence[Any], gang: Any) -> Any:
        try:
            return work(*args, channel=self._channel(ticket), gang=gang)
        finally:
            self._channels.pop(ticket, None)

    @ray.method(concurrency_group="control")
    def look(self, ticket: int) -> list[Any]:
        return self._channel(ticket).take()

    @ray.method(concurrency_group="control")
    def stop(self, ticket: int, reason: str) -> None:
        self._channel(ticket).wish = reason

    def _channel(self, ticket: int) -> Channel:
        """Made by whoever comes first: calls of different groups overtake each other."""
        with self._lock:
            return self._channels.setdefault(ticket, Channel())


actor_class: Any = ray.remote
Worker: Any = actor_class(max_restarts=0, concurrency_groups={"control": 2})(_Worker)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A piece of work has ended. ``value``: what it returned. ``error``: what it raised, or how its
    process died, None when it returned.
    """

    ticket: int
    fate: Fate
    value: Any = None
    error: BaseException | None = None


@dataclass(slots=True, kw_only=True)
class _Piece:
    ticket: int
    work: Work
    args: Sequence[Any]
    cpus: float
    actor: Any
    gang: Any = None
    awaited: list[Any] = field(default_factory=list[Any])
    """What must be there before it begins; empty once it has."""
    result: Any = None
    memory_kills: int = 0


class WorkerPool:
    """Workers by the CPUs that they hold. Needs a Ray session; `close` ends all of them."""

    def __init__(self, *, preload: Sequence[str] = ()) -> None:
        """``preload``: modules that a worker imports before it is ready."""
        self._preload = preload
        self._idle: dict[float, list[Any]] = {}
        self._pieces: dict[int, _Piece] = {}

    def start(
        self, ticket: int, work: Work, args: Sequence[Any], *, cpus: float, bundles: Bundles = ()
    ) -> None:
        """Begin as soon as a worker that holds ``cpus`` is there, and a placement group of
        ``bundles``, if any. Idle workers of other sizes end, so that theirs are free.
        """
        gang = placement_group(list(bundles), strategy="PACK") if bundles else None
        piece = _Piece(
            ticket=ticket, work=work, args=args, cpus=cpus, actor=self._worker(cpus), gang=gang
        )
        piece.awaited = [piece.actor.ready.remote(), *([gang.ready()] if gang is not None else [])]
        self._pieces[ticket] = piece

    def wait(self, timeout: float) -> tuple[list[int], list[Ended]]:
        """Tickets that have begun, and what has ended; waits at most ``timeout`` seconds."""
        awaited = [ref for each in self._pieces.values() for ref in _awaited(each)]
        if not awaited:
            return [], []
        ready, _ = ray.wait(awaited, num_returns=1, timeout=timeout)
        if ready:
            ready, _ = ray.wait(awaited, num_returns=len(awaited), timeout=0)
        begun: list[int] = []
        ended: list[Ended] = []
        for piece in list(self._pieces.values()):
            if piece.result is None and all(each in ready for each in piece.awaited):
                self._begin(piece, begun, ended)
            elif piece.result in ready:
                ended.append(_outcome(piece.ticket, piece.result, piece.memory_kills))
        return begun, ended

    def told(self, tickets: Iterable[int]) -> dict[int, list[Any]]:
        """What work that has begun said since the last call, asked of all at once."""
        asked = {t: self._pieces[t].actor.look.remote(t) for t in tickets if self._begun(t)}
        ray.wait(list(asked.values()), num_returns=len(asked), timeout=ANSWER_SECONDS)
        found: dict[int, list[Any]] = {}
        for ticket, reference in asked.items():
            try:
                found[ticket] = ray.get(reference, timeout=0.1)
            except (RayError, GetTimeoutError):
                found[ticket] = []  # it has died, which `wait` tells, or is late
        return found

    def stop(self, ticket: int, reason: str) -> None:
        """Ask work to end early; returns at once."""
        self._pieces[ticket].actor.stop.remote(ticket, reason)

    def free(self, ticket: int, *, reuse: bool) -> None:
        """Forget a piece, ended or not; its worker is kept for the next one, or killed."""
        piece = self._pieces.pop(ticket)
        if reuse:
            self._idle.setdefault(piece.cpus, []).append(piece.actor)
        else:
            ray.kill(piece.actor)
        if piece.gang is not None:
            remove_placement_group(piece.gang)

    def close(self) -> None:
        """End every worker and placement group. Allowed at any time, and twice."""
        if ray.is_initialized():
            for ticket in list(self._pieces):
                self.free(ticket, reuse=False)
            self._end_idle(self._idle)
        self._pieces, self._idle = {}, {}

    def _begun(self, ticket: int) -> bool:
        return self._pieces[ticket].result is not None

    def _worker(self, cpus: float) -> Any:
        self._end_idle([each for each in self._idle if each != cpus])
        idle = self._idle.get(cpus)
        return idle.pop() if idle else Worker.options(num_cpus=cpus).remote(self._preload)

    def _end_idle(self, sizes: Iterable[float]) -> None:
        for cpus in list(sizes):
            for actor in self._idle.pop(cpus):
                ray.kill(actor)

    def _begin(self, piece: _Piece, begun: list[int], ended: list[Ended]) -> None:
        failed = [
            outcome
            for each in piece.awaited
            if (outcome := _outcome(piece.ticket, each, 0)).fate != "returned"
        ]
        if failed:
            ended.append(failed[0])
            return
        piece.awaited, piece.memory_kills = [], memory_kills()
        piece.result = piece.actor.run.remote(piece.ticket, piece.work, piece.args, piece.gang)
        begun.append(piece.ticket)


def memory_kills() -> int:
    """How many processes this machine's kernel has killed for want of memory; 0 where unknown."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def _awaited(piece: _Piece) -> list[Any]:
    return piece.awaited if piece.result is None else [piece.result]


def _outcome(ticket: int, reference: Any, kills_before: int) -> Ended:
    """Of a reference that is ready."""
    try:
        return Ended(ticket=ticket, fate="returned", value=ray.get(reference))
    except RayTaskError as error:
        cause = error.cause if isinstance(error.cause, BaseException) else error
        return Ended(ticket=ticket, fate="raised", error=cause)
    except RayError as error:
        starved = is_of_memory(error) or memory_kills() > kills_before
        return Ended(ticket=ticket, fate="oom" if starved else "died", error=error)
