"""No call outlives its time, whatever the other side does."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from ray_diloco.errors import TransientHubError
from ray_diloco.hub.client import HubRepository
from ray_diloco.hub.repository import Addition
from ray_diloco.hub.secret import Secret
from ray_diloco.hub.transport import Timeouts

Talk = Callable[[socket.socket, threading.Event], None]


@contextlib.contextmanager
def server(talk: Talk) -> Iterator[str]:
    """A server that accepts everybody, and then does as told; gives its address."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening, contextlib.ExitStack() as stack:
        listening.settimeout(0.05)

        def accept() -> None:
            while not over.is_set():
                with contextlib.suppress(TimeoutError):
                    connection = stack.enter_context(listening.accept()[0])
                    threading.Thread(target=talk, args=(connection, over), daemon=True).start()

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            over.set()
            accepting.join()


def silence(connection: socket.socket, over: threading.Event) -> None:
    over.wait()


def trickle_headers(connection: socket.socket, over: threading.Event) -> None:
    _trickle(connection, over, b"HTTP/1.1 200 OK\r\nX-Long: ", b"x")


def trickle_body(connection: socket.socket, over: threading.Event) -> None:
    _trickle(connection, over, b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b" ")


def trickle_error(connection: socket.socket, over: threading.Event) -> None:
    _trickle(connection, over, b"HTTP/1.1 503 Busy\r\nContent-Length: 1000000\r\n\r\n", b" ")


def _trickle(connection: socket.socket, over: threading.Event, start: bytes, more: bytes) -> None:
    with contextlib.suppress(OSError):
        connection.recv(1 << 16)
        connection.sendall(start)
        while not over.wait(0.02):
            connection.sendall(more)


@pytest.mark.parametrize("talk", [silence, trickle_headers, trickle_body, trickle_error])
def test_a_call_ends_in_its_time(talk: Talk) -> None:
    timeouts = Timeouts(connect=0.3, read=0.3, total=0.4, transfer=0.4)
    addition = Addition(path="nodes/a/delta_1.safetensors", source=b"1" * 1000)
    with server(talk) as endpoint:
        repository = HubRepository(
            endpoint=endpoint, token=Secret("hf_x"), repo_id="local/run", timeouts=timeouts
        )
        for call in (
            repository.head_commit,
            lambda: repository.list_files("", commit="main"),
            lambda: repository.head("x.json"),
            lambda: repository.read("x.json", commit="main", limit=10**9),
            lambda: repository.stage([addition]),
            lambda: repository.commit("m", additions=[Addition(path="x.json", source=b"1")]),
        ):
            begun = time.monotonic()
            with pytest.raises(TransientHubError):
                call()
            assert time.monotonic() - begun < 2.0
