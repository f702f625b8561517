"""A master in a process of its own, which ends itself with SIGKILL or SIGSTOP at a named point."""

import multiprocessing
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from master_scene import master_of

from ray_diloco.hub.client import HubRepository
from ray_diloco.hub.repository import Addition
from ray_diloco.hub.secret import Secret
from ray_diloco.protocol.clock import Compute, Lane
from ray_diloco.timing.wall import WallPort

POINTS = (
    "after the listing",
    "after the downloads",
    "after the outer step",
    "after the blobs",
    "before the commit",
    "after the commit landed",
    "before the local save",
)

_context = multiprocessing.get_context("spawn")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which repository of which hub."""

    endpoint: str
    token: str
    repo_id: str

    def repository(self) -> HubRepository:
        return HubRepository(endpoint=self.endpoint, token=Secret(self.token), repo_id=self.repo_id)


def start(
    place: Place,
    state_dir: Path,
    *,
    point: str = "",
    time: int = 1,
    with_signal: signal.Signals = signal.SIGKILL,
    **options: Any,
) -> Any:
    """A process that leads, and signals itself when it comes to the point for the ``time``-th
    time.
    """
    process = _context.Process(
        target=_lead, args=(place, state_dir, point, time, with_signal, options), daemon=True
    )
    process.start()
    return process


def _lead(
    place: Place,
    state_dir: Path,
    point: str,
    time: int,
    with_signal: signal.Signals,
    options: dict[str, Any],
) -> None:
    torch.set_num_threads(1)
    left = time

    def pass_by(name: str) -> None:
        nonlocal left
        left -= name == point
        if name == point and left == 0:
            # to this thread: one to the process may reach another, and this one goes on for a while
            signal.pthread_kill(threading.get_ident(), with_signal)

    def record(event: str, **_: Any) -> None:
        if event == "publication":
            pass_by("before the local save")

    master_of(
        _Watched(place.repository(), pass_by),
        state_dir,
        port=_WatchedPort(pass_by),
        record=record,
        **options,
    ).run()


class _Watched:
    """A repository that tells where the master is."""

    def __init__(self, inner: HubRepository, pass_by: Callable[[str], None]) -> None:
        self._inner = inner
        self._pass_by = pass_by

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def list_files(self, folder: str, *, commit: str) -> Any:
        found = self._inner.list_files(folder, commit=commit)
        self._pass_by("after the listing")
        return found

    def stage(self, additions: Sequence[Addition]) -> None:
        self._inner.stage(additions)
        if len(additions) > 1:
            self._pass_by("after the blobs")

    def commit(self, message: str, **fields: Any) -> str:
        is_round = len(fields["additions"]) > 1
        if is_round:
            self._pass_by("before the commit")
        commit = self._inner.commit(message, **fields)
        if is_round:
            self._pass_by("after the commit landed")
        return commit


class _WatchedPort(WallPort):
    def __init__(self, pass_by: Callable[[str], None]) -> None:
        super().__init__()
        self._pass_by = pass_by

    def start(self, name: str, lane: Lane) -> None:
        super().start(name, self._watch(lane) if name == "round" else lane)

    def _watch(self, lane: Lane) -> Generator[Any, Any, Any]:
        answer, error = None, None
        while True:
            try:
                effect = lane.throw(error) if error is not None else lane.send(answer)
            except StopIteration as end:
                return end.value
            is_merge = isinstance(effect, Compute)
            if is_merge:
                self._pass_by("after the downloads")
            answer, error = None, None
            try:
                answer = yield effect
            except Exception as raised:
                error = raised
            if is_merge:
                self._pass_by("after the outer step")
