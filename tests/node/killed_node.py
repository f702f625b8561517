"""A node in a process of its own, which ends itself with SIGKILL at a named point."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from node_scene import SETTINGS, Stream, Wire, begin

from ray_diloco.hub.client import HubRepository
from ray_diloco.hub.secret import Secret
from ray_diloco.node.weights import Weights
from ray_diloco.protocol.run import NodeReport
from ray_diloco.timing.wall import WallPort

POINTS = (
    "before the claim",
    "after the claim",
    "while writing the record",
    "queued",
    "while sending",
    "after the delta landed",
    "before installing",
    "after installing",
    "between boundaries",
    "after the goodbye",
)

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["killed_node"])


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which repository of which hub."""

    endpoint: str
    token: str
    repo_id: str

    def repository(self) -> HubRepository:
        return HubRepository(endpoint=self.endpoint, token=Secret(self.token), repo_id=self.repo_id)


def live(
    place: Place, folder: Path, *, point: str = "", time: int = 1, **options: Any
) -> tuple[int, NodeReport | None]:
    """One life, up to the ``time``-th pass of the point or to the end: exit code and report."""
    here, there = _context.Pipe(duplex=False)
    process = _context.Process(
        target=_live, args=(place, folder, point, time, options, there), daemon=True
    )
    process.start()
    there.close()
    try:
        report = here.recv()
    except EOFError:
        report = None
    process.join()
    assert process.exitcode is not None
    return process.exitcode, report


def _live(
    place: Place, folder: Path, point: str, time: int, options: dict[str, Any], there: Connection
) -> None:
    torch.set_num_threads(1)
    left = time

    def pass_by(name: str) -> None:
        nonlocal left
        left -= name == point
        if name == point and left == 0:
            signal.pthread_kill(threading.get_ident(), signal.SIGKILL)

    life = begin(
        _Watched(place.repository(), pass_by),
        folder,
        stream=_WatchedStream(pass_by),
        weights_type=_watched_weights(pass_by),
        port=WallPort(),
        nonce=os.urandom(8).hex(),
        resume=True,
        **({"settings": SETTINGS} | options),
    )
    there.send(life.node.run())


class _Watched(Wire):
    """A repository that tells where the node is."""

    def __init__(self, inner: HubRepository, pass_by: Callable[[str], None]) -> None:
        super().__init__(inner)
        self._pass_by = pass_by

    def stage(self, additions: Any) -> None:
        self._pass_by("queued")
        self._inner.stage(additions)

    def commit(self, message: str, **fields: Any) -> str:
        before, after = _points_of(message)
        self._pass_by(before)
        commit = self._inner.commit(message, **fields)
        self._pass_by(after)
        return commit


def _points_of(message: str) -> tuple[str, str]:
    if message.endswith("active"):
        return "before the claim", "after the claim"
    if message.endswith("done"):
        return "before the goodbye", "after the goodbye"
    return "while sending", "after the delta landed"


class _WatchedStream(Stream):
    def __init__(self, pass_by: Callable[[str], None]) -> None:
        super().__init__()
        self._pass_by = pass_by

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            if self.position % SETTINGS.inner_steps == 3:
                self._pass_by("between boundaries")
            yield batch


def _watched_weights(pass_by: Callable[[str], None]) -> type[Weights]:
    class WatchedWeights(Weights):
        def save_baseline(self, path: Path) -> None:
            pass_by("while writing the record")
            super().save_baseline(path)

        def install(self, *args: Any) -> None:
            pass_by("before installing")
            super().install(*args)
            pass_by("after installing")

    return WatchedWeights
