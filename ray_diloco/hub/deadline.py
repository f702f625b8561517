"""Sockets that know when a call must be over: a server that trickles cannot hold one for ever.

The timeouts of an HTTP library count silence, read by read; a byte a second passes them all.
"""

import ssl
from collections.abc import Callable, Iterable
from typing import Any

import httpcore2
import httpx2

Left = Callable[[], float | None]
"""Seconds that the call of this thread has left; None when it is none of ours."""


def bound(transport: httpx2.HTTPTransport, left: Left) -> httpx2.HTTPTransport:
    """Let the connections of a transport end with the call that uses them.

    It reaches into the transport, which has no setting for it.
    """
    pool: Any = transport._pool
    pool._network_backend = _Backend(pool._network_backend, left)
    return transport


class _Backend(httpcore2.NetworkBackend):
    def __init__(self, backend: httpcore2.NetworkBackend, left: Left) -> None:
        self._backend = backend
        self._left = left

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        stream = self._backend.connect_tcp(host, port, timeout, local_address, socket_options)
        return _Stream(stream, self._left)

    def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        return _Stream(self._backend.connect_unix_socket(path, timeout, socket_options), self._left)

    def sleep(self, seconds: float) -> None:
        self._backend.sleep(seconds)


class _Stream(httpcore2.NetworkStream):
    def __init__(self, stream: httpcore2.NetworkStream, left: Left) -> None:
        self._stream = stream
        self._left = left

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._bounded(timeout, httpcore2.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._bounded(timeout, httpcore2.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.NetworkStream:
        timeout = self._bounded(timeout, httpcore2.ConnectTimeout)
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, timeout), self._left)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)

    def _bounded(self, timeout: float | None, late: type[Exception]) -> float | None:
        left = self._left()
        if left is None:
            return timeout
        if left <= 0:
            raise late("took longer than the call may take")
        return left if timeout is None else min(left, timeout)
