"""A run that goes on, seen and stopped from elsewhere: by its folder alone."""

import json
import os
import socket
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import psutil

from ray_diloco.cluster.engine import View
from ray_diloco.errors import UsageError
from ray_diloco.experiment.legible import folder_fault, is_file_in, mapping_of, understood
from ray_diloco.experiment.progress import Progress
from ray_diloco.experiment.run_files import CONFIG, STARTING, STATUS, STOP, write_atomically
from ray_diloco.protocol.clock import Clock, Micros, micros
from ray_diloco.protocol.run import MasterStatus, NodeStatus, RunLimits

T = TypeVar("T", RunLimits, NodeStatus, MasterStatus)

INTERVAL = micros(1.0)
NOTES_KEPT = 20
ASKED = "asked to by ray-diloco-stop"


class StatusFile:
    """Progress that is kept in the run folder as well, where there is one."""

    def __init__(
        self, run_dir: Path, within: Progress, *, limits: RunLimits, virtual: bool, clock: Clock
    ) -> None:
        """``clock``: real time, which spaces the writes."""
        self._run_dir = run_dir
        self._within = within
        self._limits = limits
        self._virtual = virtual
        self._clock = clock
        self._notes: list[str] = []
        self._next = Micros(0)
        self._last: View | None = None

    def show(self, view: View) -> None:
        self._within.show(view)
        self._last = view
        if self._clock.now() >= self._next or view.ended:
            self._next = Micros(self._clock.now() + INTERVAL)
            self._write(running=True)

    def note(self, text: str) -> None:
        self._within.note(text)
        self._notes = [*self._notes, text][-NOTES_KEPT:]

    def close(self) -> None:
        self._within.close()
        if self._last is not None:
            self._write(running=False)

    def wish(self) -> str | None:
        """Why the run should end, when somebody asked for it."""
        return ASKED if (self._run_dir / STOP).exists() else None

    def _write(self, *, running: bool) -> None:
        view = self._last
        if view is None or not self._run_dir.is_dir():
            return
        plain = {
            "running": running,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "updated_at": self._clock.utc(),
            "virtual": self._virtual,
            "limits": asdict(self._limits),
            "nodes": [asdict(node) for node in view.nodes],
            "master": asdict(view.master) if view.master is not None else None,
            "notes": self._notes,
        }
        write_atomically(self._run_dir / STATUS, json.dumps(plain, indent=2) + "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveStatus:
    """What a run last said of itself."""

    running: bool
    pid: int
    host: str
    updated_at: str
    virtual: bool
    limits: RunLimits
    view: View
    notes: tuple[str, ...]
    written_at: float
    """Unix seconds."""

    @property
    def here(self) -> bool:
        """It runs, or ran, on this machine."""
        return self.host == socket.gethostname()

    @property
    def alive(self) -> bool:
        """It runs, as far as can be seen from here: a process on another machine may be gone. One
        that is younger than its status has only the number of the one that wrote it.
        """
        if not self.running or not self.here:
            return self.running
        try:
            return psutil.Process(self.pid).create_time() <= self.written_at
        except psutil.NoSuchProcess:
            return False


def read_status(run_dir: Path) -> LiveStatus | None:
    """None when the run has not begun to train. UsageError when the folder holds no run, or a
    status that is broken.
    """
    path, holds = run_dir / STATUS, "the status of a run"
    if not is_file_in(run_dir, STATUS):
        if not any(is_file_in(run_dir, name) for name in (CONFIG, STARTING)):
            expected = f"expected the folder of a run, with {CONFIG}"
            raise UsageError(f"{run_dir}: {folder_fault(run_dir)}{expected}")
        return None
    with understood(path, holds=holds):
        return _live_status(mapping_of(path, holds=holds), path.stat().st_mtime)


def _live_status(plain: dict[str, Any], written_at: float) -> LiveStatus:
    """A status as `StatusFile` wrote it; of an earlier version some may be missing."""
    master = plain["master"]
    return LiveStatus(
        running=plain["running"],
        pid=_process_number(plain["pid"]),
        host=plain["host"],
        updated_at=plain["updated_at"],
        virtual=plain["virtual"],
        limits=_numbered(RunLimits, plain["limits"]),
        view=View(
            nodes=tuple(_numbered(NodeStatus, node) for node in plain["nodes"]),
            master=_numbered(MasterStatus, master | {"missing": tuple(master.get("missing", ()))})
            if master is not None
            else None,
            events=(),
            ended=not plain["running"],
        ),
        notes=tuple(plain["notes"]),
        written_at=written_at,
    )


def _numbered(kind: type[T], plain: dict[str, Any]) -> T:
    """TypeError for a text where the class has numbers, since a sum of them would fail later."""
    made = kind(**plain)
    for each in fields(made):
        value = getattr(made, each.name)
        if isinstance(value, str) and not isinstance(each.default, str) and each.name != "node_id":
            raise TypeError(f"{each.name}={value!r}")
    return made


def _process_number(pid: Any) -> int:
    if not (isinstance(pid, int) and pid > 0):
        raise ValueError(f"pid={pid!r}")
    return pid


def ask_to_stop(run_dir: Path) -> None:
    """The run sends what it has, saves and ends; it looks several times a second."""
    (run_dir / STOP).touch()
