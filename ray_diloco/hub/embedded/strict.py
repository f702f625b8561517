"""What makes the embedded hub as unkind as a real one: rules, and faults planned per request."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum

from aiohttp import web

from ray_diloco.hub.embedded.answers import BlobResponse, Refused
from ray_diloco.protocol.clock import MICROS_PER_SECOND, Clock

HOUR = 3600 * MICROS_PER_SECOND
HUB_COMMITS_PER_HOUR = 128
SLOW_PIECES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """``commits_per_hour`` of one repository: None for no limit. ``one_commit_at_a_time``: 409."""

    commits_per_hour: int | None = None
    one_commit_at_a_time: bool = False


STRICT = Rules(commits_per_hour=HUB_COMMITS_PER_HOUR, one_commit_at_a_time=True)


class FaultKind(StrEnum):
    """What happens to a request."""

    refuse = "refuse"  # answered with `status`, without effect
    landed_500 = "landed_500"  # takes effect, and answers 500
    lost = "lost"  # takes effect, and the connection breaks before the answer
    reset = "reset"  # the connection breaks before anything happened
    stall = "stall"  # silent for `seconds`, then as `reset`
    truncate = "truncate"  # half of the file arrives, then the connection breaks
    flip = "flip"  # the file arrives whole, with one bit flipped
    lag = "lag"  # branches are seen where they were one commit ago
    slow = "slow"  # a file comes in pieces over `seconds`; anything else that much later


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. ``status``, ``retry_after`` (seconds) and ``text`` are those of a refusal."""

    kind: FaultKind
    status: int = 503
    retry_after: int | None = None
    seconds: float = 0.0
    text: str = "refused by plan"


LAGGING: ContextVar[bool] = ContextVar("lagging", default=False)
"""Whether the request that this task answers sees branches late."""

Plan = Callable[[str, web.Request], Fault | None]
"""Asked for each request, with the name of its route ("commit", "resolve", "upload", ...)."""


def no_faults(_route: str, _request: web.Request) -> Fault | None:
    """The plan of a kind hub."""
    return None


def quota_text(limit: int) -> str:
    """What the Hub says to one commit too many."""
    return f"You have exceeded the rate limit for repository commits ({limit} per hour)."


class Quota:
    """Commits of the last hour, by repository."""

    def __init__(self, rules: Rules, clock: Clock) -> None:
        self._limit = rules.commits_per_hour
        self._clock = clock
        self._moments: dict[str, deque[int]] = {}

    def take(self, repo_id: str) -> None:
        """Count a commit. Refused with 429 when the hour is full; that counts as no commit."""
        if self._limit is None:
            return
        now = self._clock.now()
        moments = self._moments.setdefault(repo_id, deque())
        while moments and moments[0] <= now - HOUR:
            moments.popleft()
        if len(moments) >= self._limit:
            wait = -(-(moments[0] + HOUR - now) // MICROS_PER_SECOND)
            raise Refused(
                429,
                "TooManyRequests",
                f"{quota_text(self._limit)} Retry in {wait} seconds.",
                {"Retry-After": str(wait)},
            )
        moments.append(now)


async def suffer(
    fault: Fault, request: web.Request, handle: Callable[[], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer a request as the fault has it. ``handle`` does what was asked."""
    match fault.kind:
        case FaultKind.refuse:
            after = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
            raise Refused(fault.status, "Fault", fault.text, after)
        case FaultKind.landed_500:
            await handle()
            raise Refused(500, "Fault", "failed after it took effect, by plan")
        case FaultKind.reset:
            return broken(request)
        case FaultKind.stall:
            await asyncio.sleep(fault.seconds)
            return broken(request)
        case FaultKind.lost:
            await handle()
            return broken(request)
        case FaultKind.lag:
            return await _late(handle)
        case FaultKind.slow:
            return await _slow(request, handle, fault.seconds)
        case _:
            return await _damaged(fault.kind, request, await handle())


async def _late(handle: Callable[[], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
    before = LAGGING.set(True)
    try:
        return await handle()
    finally:
        LAGGING.reset(before)  # one task answers all requests of a connection


async def _slow(
    request: web.Request, handle: Callable[[], Awaitable[web.StreamResponse]], seconds: float
) -> web.StreamResponse:
    if request.method != "GET":
        await asyncio.sleep(seconds)
    whole = await handle()
    if not isinstance(whole, BlobResponse) or request.method == "HEAD":
        return whole
    content = await asyncio.to_thread(whole.blob.read_bytes)
    answer = web.StreamResponse(headers={**whole.headers, "Content-Length": str(len(content))})
    await answer.prepare(request)
    piece = -(-len(content) // SLOW_PIECES) or 1
    for start in range(0, len(content), piece):
        await asyncio.sleep(seconds / SLOW_PIECES)
        await answer.write(content[start : start + piece])
    return answer


def broken(request: web.Request) -> web.StreamResponse:
    """Break the connection; what is returned is never seen."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


async def _damaged(
    kind: FaultKind, request: web.Request, whole: web.StreamResponse
) -> web.StreamResponse:
    """The file of the answer, cut or with a bit flipped; an answer without a file stays whole."""
    if not isinstance(whole, BlobResponse) or request.method == "HEAD":
        return whole
    content = bytearray(await asyncio.to_thread(whole.blob.read_bytes))
    if kind is FaultKind.flip:
        content[len(content) // 2] ^= 1
        return web.Response(body=bytes(content), headers=whole.headers)
    answer = web.StreamResponse(headers={**whole.headers, "Content-Length": str(len(content))})
    await answer.prepare(request)
    await answer.write(bytes(content[: len(content) // 2]))
    return broken(request)
