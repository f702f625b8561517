"""Ray on the machines of a network: a head, and raylets that are started and lost one by one."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psutil
from end_to_end.machines import ACTORS, title
from end_to_end.networks import Network, network
from end_to_end.programs import END_SECONDS, PATIENCE

PORT, CLIENT_PORT = 6379, 10001
"""Of the head, which has its network for itself."""
QUICK_TO_NOTICE = {
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 8,
}
"""A machine that does not answer is dead after eight looks of 2.5 s, not after a minute: later than
whatever is on it feels the cut, on a busy machine too.
"""
HEAD = "head"


class Raylets:
    """Each with a label ``kind``, the name of its machine. The machine ``HEAD`` has the head."""

    def __init__(self, wires: Network, folder: Path) -> None:
        self.wires = wires
        self._folder = folder
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def environment(self) -> dict[str, str]:
        """Of a process on the head that joins by ``auto``, or from elsewhere by an address."""
        return {"RAY_AUTH_MODE": "disabled", "RAY_TMPDIR": str(self._folder / HEAD)}

    def start(self, *names: str) -> None:
        """They are there when this returns. A raylet gives up when its agents take 15 s to start,
        which on a busy machine they may.
        """
        for name in names:
            self._started[name] = self._start(name)
        for name in names:
            ends = time.monotonic() + PATIENCE
            while not self._is_up(name):
                assert time.monotonic() < ends, self._log(name).read_text()

    def _is_up(self, name: str) -> bool:
        """Once it has said so, or has ended, and was started again."""
        log, process = self._log(name), self._started[name]
        while "Ray runtime started" not in log.read_text():
            if process.poll() is not None:
                self.wires.power_off(name)
                self._started[name] = self._start(name)
                return False
            time.sleep(0.05)  # another process is waited for
        return True

    def await_end(self, name: str) -> None:
        """Until its raylet has noticed that Ray took it for dead, and ended with all its own."""
        self._started.pop(name).wait(PATIENCE)

    def close(self) -> None:
        """Kill all that runs on the machines."""
        for name in self.wires.names:
            self.wires.power_off(name)
        for each in self._started.values():
            each.wait()

    def left(self) -> list[psutil.Process]:
        """Processes with an actor of ours, on any machine, that do not end within a while."""
        ends = time.monotonic() + END_SECONDS
        while (found := self.actors()) and time.monotonic() < ends:
            time.sleep(0.05)  # processes of another one are waited for
        return found

    def actors(self, *kinds: str) -> list[psutil.Process]:
        """Living processes with one of our actors inside; of any kind when none is named."""
        running = [each for name in self.wires.names for each in self.wires.processes(name)]
        return [each for each in running if any(kind in title(each) for kind in kinds or ACTORS)]

    def _start(self, name: str) -> "subprocess.Popen[bytes]":
        words = ("start", "--block", *self._of_the_cluster(name), *self._of_the_machine(name))
        with self._log(name).open("wb") as output:
            return subprocess.Popen(
                [*self.wires.inside(name), sys.executable, "-m", "ray.scripts.scripts", *words],
                stdout=output,
                stderr=output,
                env=os.environ | {"RAY_AUTH_MODE": "disabled"},
            )

    def _of_the_cluster(self, name: str) -> list[str]:
        if name != HEAD:
            return [f"--address={self.wires.address(HEAD)}:{PORT}"]
        return [
            "--head",
            "--include-dashboard=false",
            f"--port={PORT}",
            f"--ray-client-server-port={CLIENT_PORT}",
            f"--system-config={json.dumps(QUICK_TO_NOTICE)}",
        ]

    def _of_the_machine(self, name: str) -> list[str]:
        return [
            f"--node-ip-address={self.wires.address(name)}",
            f"--labels=kind={name}",
            f"--temp-dir={self._folder / name}",
            "--num-cpus=1",
            "--object-store-memory=78643200",
            "--include-log-monitor=false",
            "--disable-usage-stats",
        ]

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.txt"


@contextmanager
def raylets(*names: str, beside: tuple[str, ...] = ()) -> Generator[Raylets, None, None]:
    """A head and these, for as long as the context lasts; ``beside``: machines without Ray."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        network(HEAD, *names, *beside, folder=Path(folder)) as wires,
    ):
        started = Raylets(wires, Path(folder))
        try:
            started.start(HEAD)
            started.start(*names)
            yield started
        finally:
            started.close()
