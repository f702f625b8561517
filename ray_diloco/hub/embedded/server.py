"""The embedded hub at work: the application, its socket and event loop in a thread of its own."""

import asyncio
import errno
import fcntl
import os
import secrets
import threading
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic_ns
from types import TracebackType

from aiohttp import web

from ray_diloco.hub.embedded.app import make_app
from ray_diloco.hub.embedded.catalog import Catalog
from ray_diloco.hub.embedded.signing import Signer
from ray_diloco.hub.embedded.state import HubState
from ray_diloco.hub.embedded.strict import Plan, Quota, Rules, no_faults
from ray_diloco.hub.secret import Secret
from ray_diloco.protocol.clock import Clock, Micros

UPLOAD_SECONDS = 3600.0
PART_BYTES = 4 << 30
KEEPALIVE_SECONDS = 3600.0
READ_BUFFER_BYTES = 1 << 20


class SystemClock:
    """The machine's own time."""

    def now(self) -> Micros:
        return Micros(monotonic_ns() // 1000)

    def utc(self) -> str:
        return datetime.now(UTC).isoformat(timespec="microseconds")


def lock_folder(folder: Path) -> int:
    """A descriptor that holds the folder until it is closed, or the process ends.

    OSError when another process serves it: two of them would tear each other's journals.
    """
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise OSError(errno.EBUSY, "another hub serves this folder", str(folder)) from None
    return handle


class EmbeddedHub:
    """A hub that serves a folder over HTTP. What it has said yes to survives SIGKILL.

    OSError when the folder cannot be used or another hub serves it.

    ``token``: random when None. ``reader``: a second token that may only read. ``clock`` dates
    commits and counts the quota. ``upload_seconds``: life of an upload address, and of a blob that
    no commit names. ``part_bytes``: larger blobs are sent in parts of this size.
    """

    def __init__(
        self,
        folder: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: Secret | None = None,
        reader: Secret | None = None,
        clock: Clock | None = None,
        rules: Rules | None = None,
        plan: Plan = no_faults,
        upload_seconds: float = UPLOAD_SECONDS,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self.token = token or Secret("hf_" + secrets.token_urlsafe(32))
        self._host = host
        self._port = port
        clock = clock or SystemClock()
        rules = rules or Rules()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = lock_folder(folder)
        self._state = HubState(
            catalog=Catalog(folder, clock=clock, spared_seconds=upload_seconds),
            token=self.token,
            reader=reader,
            signer=Signer(seconds=upload_seconds),
            rules=rules,
            quota=Quota(rules, clock),
            plan=plan,
            part_bytes=part_bytes,
        )
        self._loop = asyncio.new_event_loop()
        self._runner: web.AppRunner | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="hub", daemon=True)

    def start(self) -> "EmbeddedHub":
        """Listen. OSError when the address cannot be had."""
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        except BaseException:
            self.close()
            raise
        return self

    @property
    def endpoint(self) -> str:
        """Where clients reach it. RuntimeError before `start`."""
        if self._runner is None:
            raise RuntimeError("the hub was not started")
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    def plan_faults(self, plan: Plan) -> None:
        """Ask another plan for the faults of the requests to come."""
        self._state.plan = plan

    def close(self) -> None:
        """Stop serving and leave the folder. Can be called twice."""
        if self._loop.is_closed():
            return
        if self._runner is not None:
            asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()
        if self._thread.is_alive():
            rest = self._loop.shutdown_default_executor()
            asyncio.run_coroutine_threadsafe(rest, self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()
        self._state.catalog.close()
        os.close(self._lock)

    def __enter__(self) -> "EmbeddedHub":
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def _listen(self) -> None:
        runner = web.AppRunner(
            make_app(self._state),
            access_log=None,
            keepalive_timeout=KEEPALIVE_SECONDS,
            read_bufsize=READ_BUFFER_BYTES,
            shutdown_timeout=1.0,
        )
        await runner.setup()
        self._runner = runner
        site = web.TCPSite(runner, self._host, self._port)
        await site.start()
        self._port = runner.addresses[0][1]
