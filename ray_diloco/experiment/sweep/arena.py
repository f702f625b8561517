"""What the trials of a sweep run on: one Ray, a pool of workers and one hub, from the first trial
that needs them to the end.
"""

import signal
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from ray_diloco.cluster.ray_session import ray_session
from ray_diloco.cluster.settings import RaySettings
from ray_diloco.cluster.shared_hub import SharedHub, shared_hub
from ray_diloco.experiment.schema import Config, Role
from ray_diloco.hub.connect import endpoint_of
from ray_diloco.hub.entrance import find_token
from ray_diloco.hub.settings import HubKind, HubSettings

PRELOAD = ("ray_diloco.experiment.sweep.work",)
HUB_FOLDER = "hub"


class Arena:
    """A context manager; leaves an existing Ray as it was."""

    def __init__(self, settings: RaySettings, sweep_dir: Path) -> None:
        self._settings = settings
        self._sweep_dir = sweep_dir
        self._stack = ExitStack()
        self._hub: SharedHub | None = None
        self._pool: Any = None
        self._capacity: Any = None

    def __enter__(self) -> "Arena":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def pool(self) -> Any:
        """The `cluster.pool.WorkerPool`. Starts Ray, or joins it."""
        self._open()
        return self._pool

    @property
    def capacity(self) -> Any:
        """The `cluster.capacity.Capacity` that the sweep may use: what was free when it began."""
        self._open()
        return self._capacity

    def hub_for(self, config: Config) -> SharedHub | None:
        """The hub for a trial's repository; None when the trial brings
        its own: a hub with other rules than a plain one, or workers on other machines, which would
        not reach it on this one's loopback. Workers do not inherit the user's token, so that of a
        hub that runs already comes from here. HubError when there is none.
        """
        plain, wanted = HubSettings(kind=HubKind.embedded), config.hub
        if wanted.kind is HubKind.memory or config.run.role is Role.single:
            return None
        if wanted.kind is HubKind.huggingface or wanted.endpoint is not None:
            return SharedHub(endpoint=endpoint_of(wanted), token=find_token())
        same = all(getattr(wanted, name) == getattr(plain, name) for name in _OF_THE_HUB)
        if not same or self.capacity.machines > 1:
            return None
        if self._hub is None:
            folder = self._sweep_dir / HUB_FOLDER
            self._hub = self._stack.enter_context(
                shared_hub(folder, plain, restarts=self._settings.restarts)
            )
        return self._hub

    def _open(self) -> None:
        if self._pool is not None:
            return
        with _sigterm_kept():
            self._stack.enter_context(ray_session(self._settings))
        from ray_diloco.cluster.capacity import free_capacity  # Ray only when something runs
        from ray_diloco.cluster.pool import WorkerPool

        self._capacity = free_capacity()
        self._pool = WorkerPool(preload=PRELOAD)
        self._stack.callback(self._pool.close)


@contextmanager
def _sigterm_kept() -> Generator[None, None, None]:
    """Ray, when it starts, takes SIGTERM from whoever handled it in this process."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


_OF_THE_HUB = ("kind", "endpoint", "host", "port", "strict", "faults")
"""Settings that a hub serves its repositories by."""
