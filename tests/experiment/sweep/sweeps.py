"""`ray-diloco -m` as a user starts it: a process, and the folder that it leaves."""

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from end_to_end.programs import SMALL, Program, left_behind, program

from ray_diloco.experiment.sweep.rows import ROWS, Row, Status, latest, read_rows

TINY = (*SMALL, "run.report=false")


def on(address: str) -> tuple[str, ...]:
    """On the Ray that is there, as many trials at once as this machine has cores."""
    return (f"ray.address={address}", "hydra.launcher.max_concurrent=2")


def swept(*words: str, folder: Path, name: str = "sweep"):
    """Its sweep folder is ``name`` in ``folder``."""
    return program(
        "ray_diloco.experiment.main", "-m", *TINY, *words, f"hydra.sweep.dir={folder / name}",
        folder=folder,
    )  # fmt: skip


def rows_of(folder: Path, name: str = "sweep") -> list[Row]:
    found = folder / name
    return read_rows(found) if (found / ROWS).exists() else []


def statuses(folder: Path) -> dict[int, Status]:
    return {row.trial: row.status for row in latest(rows_of(folder))}


def assert_complete(folder: Path, seeds: range) -> None:
    """Every trial is once in the table, and went well."""
    rows = latest(rows_of(folder))
    assert [row.overrides["run.seed"] for row in rows] == list(seeds)
    assert {row.status for row in rows} == {Status.done}
    assert len({row.key for row in rows}) == len(rows)
    settled = [row.key for row in rows_of(folder) if row.status.settled]
    assert len(settled) == len(set(settled))


def kill(driver: Program) -> None:
    """SIGKILL of the driver alone; Ray's own processes notice it after a while."""
    started = driver.descendants()
    driver.process.kill()
    driver.process.wait()
    for each in left_behind(started, within=10):
        with suppress(psutil.NoSuchProcess):
            each.kill()


@contextmanager
def lasting_ray(folder: Path, *cpus: int) -> Generator[str, None, None]:
    """The address of a Ray of machines with so many CPUs, started in a process of its own. It asks
    for no token, so that whoever knows the address can join.
    """
    script, log = Path(__file__).parent / "lasting_ray.py", folder / "ray.txt"
    with pytest.MonkeyPatch.context() as environment, log.open("wb") as errors:
        environment.setenv("RAY_AUTH_MODE", "disabled")
        process = subprocess.Popen(
            [sys.executable, str(script), *map(str, cpus)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
        )  # fmt: skip
        with process:
            address = next((line for line in process.stdout if line.startswith("address ")), None)
            assert address is not None, log.read_text()
            started = psutil.Process(process.pid).children(recursive=True)
            yield address.split()[1]
            process.stdin.close()
            _end(process, started)


def _end(process: subprocess.Popen[str], started: list[psutil.Process]) -> None:
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        for each in [*started, process]:
            with suppress(psutil.NoSuchProcess):
                each.kill()
