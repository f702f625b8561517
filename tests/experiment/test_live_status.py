import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ray_diloco.cluster.engine import View
from ray_diloco.errors import ConfigError, UsageError
from ray_diloco.experiment.detached import detach
from ray_diloco.experiment.live_status import StatusFile, ask_to_stop, read_status
from ray_diloco.experiment.progress import NoProgress
from ray_diloco.protocol.clock import Micros
from ray_diloco.protocol.run import MasterStatus, NodeStatus, RunLimits

VIEW = View(
    nodes=(NodeStatus(node_id="a", state="training", local_step=7, loss=1.5),),
    master=MasterStatus(outer_step=3, missing=("b",)),
    events=(),
    ended=False,
)
LIMITS = RunLimits(max_steps=10)


class Now:
    """Real time, as the test says."""

    def __init__(self) -> None:
        self.at = Micros(0)

    def now(self) -> Micros:
        return self.at

    def utc(self) -> str:
        return "2030-01-01T00:00:00.000000+00:00"


def status_file(run_dir: Path, clock: Now | None = None) -> StatusFile:
    return StatusFile(run_dir, NoProgress(), limits=LIMITS, virtual=True, clock=clock or Now())


def test_what_is_shown_can_be_read_from_the_folder(tmp_path: Path) -> None:
    shown = status_file(tmp_path)
    shown.note("warning: two")
    shown.show(VIEW)
    live = read_status(tmp_path)
    assert live is not None
    assert (live.view, live.limits, live.notes) == (VIEW, LIMITS, ("warning: two",))
    assert (live.pid, live.host, live.virtual) == (os.getpid(), socket.gethostname(), True)
    assert live.running
    assert live.alive


def test_the_end_of_the_run_is_told(tmp_path: Path) -> None:
    shown = status_file(tmp_path)
    shown.show(VIEW)
    shown.close()
    live = read_status(tmp_path)
    assert live is not None
    assert not live.running
    assert live.view.ended


def test_it_is_written_once_a_second(tmp_path: Path) -> None:
    clock = Now()
    shown = status_file(tmp_path, clock)
    shown.show(VIEW)
    (tmp_path / "status.json").unlink()
    clock.at = Micros(999_999)
    shown.show(VIEW)
    assert not (tmp_path / "status.json").exists()
    clock.at = Micros(1_000_000)
    shown.show(VIEW)
    assert (tmp_path / "status.json").exists()


def test_a_run_that_never_had_a_folder_leaves_none(tmp_path: Path) -> None:
    shown = status_file(tmp_path / "none")
    shown.show(VIEW)
    shown.close()
    assert not (tmp_path / "none").exists()


def test_a_wish_to_stop_reaches_the_run(tmp_path: Path) -> None:
    shown = status_file(tmp_path)
    assert shown.wish() is None
    ask_to_stop(tmp_path)
    assert "ray-diloco-stop" in (shown.wish() or "")


def test_a_process_that_died_is_not_alive(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    status_file(tmp_path).show(VIEW)
    file = tmp_path / "status.json"
    file.write_text(file.read_text().replace(f'"pid": {os.getpid()}', f'"pid": {gone.pid}'))
    live = read_status(tmp_path)
    assert live is not None
    assert live.running
    assert not live.alive


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="folder of a run"):
        read_status(tmp_path)


def test_a_run_that_does_not_train_yet_has_no_status(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    assert read_status(tmp_path) is None


def test_a_sweep_is_not_detached(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ray\.detach=True"):
        detach(tmp_path, [], many=True)


def test_a_later_process_with_the_same_number_is_not_the_run(tmp_path: Path) -> None:
    status_file(tmp_path).show(VIEW)
    os.utime(tmp_path / "status.json", (1, 1))
    live = read_status(tmp_path)
    assert live is not None
    assert not live.alive


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"pid": ', '"pid": -'),
        ('"pid": ', '"pid": "7", "x": '),
        ('"local_step": 7', '"local_step": "7"'),
        ('"now": 0', '"now": "soon"'),
        ('"max_steps": 10', '"max_steps": "ten"'),
        ('"outer_step": 3', '"outer_step": "3"'),
    ],
)
def test_a_status_that_is_broken_is_refused(tmp_path: Path, old: str, new: str) -> None:
    status_file(tmp_path).show(VIEW)
    path = tmp_path / "status.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(UsageError, match=r"status\.json: cannot be made sense of"):
        read_status(tmp_path)
