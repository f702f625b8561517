"""Commands as real processes, each in a group of its own as a terminal would have it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import psutil

PATIENCE = 200.0
END_SECONDS = 60.0
"""Within so many all is gone that a command started: Ray lets its actors take their time, and on a
busy machine they do.
"""
SMALL = (
    "debug=default",
    "run.debug=false",
    "data=synthetic",
    "data.synthetic_bytes=20000",
    "run.progress=plain",
)
"""A run that takes no time: two nodes, a small mlp, 12 steps."""


class Program:
    """One process; its output goes to a file, so that it can never block."""

    def __init__(
        self,
        module: str,
        words: tuple[str, ...],
        folder: Path,
        env: dict[str, str],
        inside: tuple[str, ...] = (),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._output = folder / "output.txt"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [*inside, sys.executable, "-m", module, *words],
                cwd=folder,
                env=os.environ | {"OMP_NUM_THREADS": "1"} | env,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    @property
    def result(self) -> dict:
        return json.loads((self.run_dir / "result.json").read_text())

    def events(self, name: str) -> list[dict]:
        file = self.run_dir / "events.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        whole = [json.loads(line) for line in lines if line.endswith("\n")]
        return [each for each in whole if each["event"] == name]

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until it is true while the process runs."""
        ends = time.monotonic() + PATIENCE
        while not condition():
            assert self.process.poll() is None, self.output
            assert time.monotonic() < ends, self.output
            time.sleep(0.05)  # another process is waited for

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def press_ctrl_c(self) -> None:
        """What a terminal does: the signal goes to the whole group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self) -> int:
        """Wait for the end; gives the exit code."""
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still there:\n{self.output}") from None


@contextmanager
def program(
    module: str, *words: str, folder: Path, inside: tuple[str, ...] = (), **env: str
) -> Generator[Program, None, None]:
    """A process that is killed with its descendants if it is still there. ``inside``: what is put
    before its command.
    """
    started = Program(module, words, folder, env, inside)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            for each in started.descendants():
                each.kill()
            started.process.kill()
            started.process.wait()


def ray_diloco(*words: str, folder: Path, inside: tuple[str, ...] = (), **env: str):
    """The command ``ray-diloco``, with its run folder in ``folder``."""
    module, run_dir = "ray_diloco.experiment.main", f"hydra.run.dir={folder / 'run'}"
    return program(module, *words, run_dir, folder=folder, inside=inside, **env)


def left_behind(
    processes: list[psutil.Process], within: float = END_SECONDS
) -> list[psutil.Process]:
    """Those that do not end by themselves, given so many seconds."""
    _, alive = psutil.wait_procs(processes, timeout=within)
    return [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]
