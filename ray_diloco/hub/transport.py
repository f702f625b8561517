"""The HTTP transport under the Hub's client: timeouts on every call, no hidden retries, counted.

The client shares one HTTP session per process. This transport takes its place there and changes
only what happens inside `calling`; other users of the client in this process see no difference.
Inside, an error status or a broken connection becomes one of our errors at once, before the client
sees it: its own back-off never sleeps, and no exception ever holds a request with its token.
"""

import contextlib
import ipaddress
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

import httpx2
from huggingface_hub import set_client_factory
from huggingface_hub.utils._http import hf_request_event_hook

from ray_diloco.hub.deadline import bound
from ray_diloco.hub.faults import Asked, fault_of_network, fault_of_status

LONGEST_ERROR_BODY = 1 << 16
CURIOSITY = "/api/agent-harnesses"
"""What the client asks huggingface.co once a process to learn about its user, whatever hub it
talks to: no part of the exchange, so it is neither sent nor counted.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds: to connect, of silence, of a whole call, of a call that moves large files."""

    connect: float = 10.0
    read: float = 30.0
    total: float = 60.0
    transfer: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of the client, which may make several requests until ``deadline`` (monotonic).

    ``has_token``: a request without one then goes to a signed address.
    """

    timeouts: Timeouts
    deadline: float
    has_token: bool
    count_request: Callable[[], None]

    def timeout(self, asked: Asked) -> dict[str, float]:
        """What httpx calls the timeout of the next request, in seconds. TransientHubError."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise fault_of_network("took longer than the call may take", asked, connected=True)
        silence = min(self.timeouts.read, left)
        connect = min(self.timeouts.connect, left)
        return {"connect": connect, "pool": connect, "read": silence, "write": silence}


_CALL: ContextVar[Call | None] = ContextVar("ray_diloco_hub_call", default=None)


@contextlib.contextmanager
def calling(
    timeouts: Timeouts, *, seconds: float, has_token: bool, count_request: Callable[[], None]
) -> Iterator[None]:
    """Requests of this thread inside the block end within ``seconds``, and raise our errors."""
    call = Call(
        timeouts=timeouts,
        deadline=time.monotonic() + seconds,
        has_token=has_token,
        count_request=count_request,
    )
    before = _CALL.set(call)
    try:
        yield
    finally:
        _CALL.reset(before)


def _seconds_left() -> float | None:
    call = _CALL.get()
    return None if call is None else call.deadline - time.monotonic()


class WatchedTransport(httpx2.BaseTransport):
    """Sends each request over the right way (a proxy or none) and watches those of our calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ways: dict[str | None, httpx2.HTTPTransport] = {}

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        way = self._way(proxy_for(request.url.scheme, request.url.host))
        call = _CALL.get()
        if call is None:
            return way.handle_request(request)
        if request.url.path == CURIOSITY:
            return httpx2.Response(404, request=request)
        asked = _asked(request, call)
        call.count_request()
        request.extensions["timeout"] = call.timeout(asked)
        stream = cast(httpx2.SyncByteStream, request.stream)
        request.stream = _WatchedStream(stream, call, asked)
        with _sorted_faults(asked):
            response = way.handle_request(request)
        if response.status_code >= 400:
            _raise_fault(response, asked)
        received = cast(httpx2.SyncByteStream, response.stream)
        response.stream = _WatchedStream(received, call, asked)
        return response

    def close(self) -> None:
        for way in self._ways.values():
            way.close()

    def _way(self, proxy: str | None) -> httpx2.HTTPTransport:
        with self._lock:
            if proxy not in self._ways:
                self._ways[proxy] = bound(httpx2.HTTPTransport(proxy=proxy), _seconds_left)
            return self._ways[proxy]


class _WatchedStream(httpx2.SyncByteStream):
    """A body, on its way up or down, that ends with our error when the call's time is over."""

    def __init__(self, stream: httpx2.SyncByteStream, call: Call, asked: Asked) -> None:
        self._stream = stream
        self._call = call
        self._asked = asked

    def __iter__(self) -> Iterator[bytes]:
        with _sorted_faults(self._asked):
            for chunk in self._stream:
                self._call.timeout(self._asked)
                yield chunk

    def close(self) -> None:
        self._stream.close()


def proxy_for(scheme: str, host: str) -> str | None:
    """The proxy of the environment for a host; none for addresses of this machine or network."""
    if host == "localhost" or _is_private_address(host):
        return None
    proxies = urllib.request.getproxies()
    proxy = proxies.get(scheme) or proxies.get("all")
    return proxy if proxy and not urllib.request.proxy_bypass(host) else None


class _Session(httpx2.Client):
    """The Hub's client hands files over as ``data``, which httpx deprecates for ``content``."""

    def build_request(self, *args: Any, **kwargs: Any) -> httpx2.Request:
        data = kwargs.get("data")
        if data is not None and not isinstance(data, Mapping):
            kwargs["content"] = kwargs.pop("data")
        return super().build_request(*args, **kwargs)


def make_client() -> httpx2.Client:
    """The session that the Hub's client uses in this process."""
    return _Session(
        transport=WatchedTransport(),
        event_hooks={"request": [_before_foreign_request]},
        follow_redirects=True,
        timeout=None,
        trust_env=False,
    )


def install() -> None:
    """Put the transport under the Hub's client of this process."""
    set_client_factory(make_client)


def _before_foreign_request(request: httpx2.Request) -> None:
    if _CALL.get() is None:
        hf_request_event_hook(request)


def _is_private_address(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_private
    except ValueError:
        return False


def _asked(request: httpx2.Request, call: Call) -> Asked:
    path = request.url.path
    changes = request.method == "POST" and ("/commit/" in path or "/super-squash/" in path)
    return Asked(
        host=request.url.netloc.decode(),
        method=request.method,
        path=path,
        changes_branch=changes,
        signed=call.has_token and "Authorization" not in request.headers,
    )


@contextlib.contextmanager
def _sorted_faults(asked: Asked) -> Iterator[None]:
    try:
        yield
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
        raise fault_of_network(_reason(error), asked, connected=False) from None
    except (httpx2.TransportError, httpx2.StreamError, ConnectionError) as error:
        raise fault_of_network(_reason(error), asked, connected=True) from None


def _reason(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()


def _raise_fault(response: httpx2.Response, asked: Asked) -> None:
    """Raise the error that an answer stands for, with what its body or header says."""
    detail = response.headers.get("X-Error-Message", "")
    try:
        if not detail and asked.method != "HEAD":
            with _sorted_faults(asked):
                detail = _beginning(response)
    finally:
        response.close()
    raise fault_of_status(response.status_code, response.headers, detail, asked)


def _beginning(response: httpx2.Response) -> str:
    body = b""
    for chunk in cast(httpx2.SyncByteStream, response.stream):
        body += chunk
        if len(body) >= LONGEST_ERROR_BODY:
            break
    return body[:LONGEST_ERROR_BODY].decode(errors="replace")


install()
