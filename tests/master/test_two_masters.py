"""A standby takes over from a silent master, and one that wakes late changes nothing."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from killed_master import Place, start
from master_scene import (
    InlinePort,
    claim,
    delta,
    deltas_listed,
    lead,
    master_of,
    merged_of,
    published,
    send,
)

from ray_diloco.errors import EntryMissing
from ray_diloco.hub.memory import MemoryRepository
from ray_diloco.hub.repository import Repository
from ray_diloco.master.publishing import SupersededError
from ray_diloco.protocol.heartbeat import Heartbeat
from ray_diloco.protocol.paths import HEARTBEAT_PATH
from ray_diloco.timing.wall import WallPort

LEASE = {"lease_seconds": 0.3}


def beats(repository: Repository) -> int:
    try:
        commit = repository.head_commit()
        data = repository.read(HEARTBEAT_PATH, commit=commit, limit=1000)
    except EntryMissing:
        return 0
    return Heartbeat.from_json(data).beat


class Script:
    """What the nodes do, one entry each time that the master idles."""

    def __init__(self, *acts: Callable[[], object]) -> None:
        self._acts = list(acts)

    def __call__(self) -> None:
        if self._acts:
            self._acts.pop(0)()


def wait() -> None:
    """The nodes do nothing for one poll."""


def test_a_master_with_nothing_to_publish_beats(tmp_path):
    repository = MemoryRepository()
    last = [wait] * 40 + [lambda: send(repository.another(), claim("a", "done"))]
    port = InlinePort(Script(*last))
    lead(repository, tmp_path, port=port, expected=("a",), **LEASE)
    # 41 polls of 0.05 s, a beat each 0.15 s
    assert 8 <= beats(repository) <= 14


def test_a_master_that_publishes_does_not_beat(tmp_path):
    repository = MemoryRepository()
    nodes = repository.another()
    acts = [lambda step=step: send(nodes, delta("a", step)) for step in range(10, 110, 10)]
    port = InlinePort(Script(*acts, lambda: send(nodes, claim("a", "done"))))
    report = lead(repository, tmp_path, port=port, expected=("a",), **LEASE)
    assert merged_of(report) == {"a": "1-100"}
    assert beats(repository) == 0


def test_without_a_lease_there_is_no_heartbeat(tmp_path):
    repository = MemoryRepository()
    acts = [wait] * 40 + [lambda: send(repository.another(), claim("a", "done"))]
    lead(repository, tmp_path, port=InlinePort(Script(*acts)), expected=("a",))
    assert beats(repository) == 0


def test_a_heartbeat_of_its_own_does_not_look_like_another_master(tmp_path):
    repository = MemoryRepository()
    nodes = repository.another()
    acts = [wait] * 6 + [lambda: send(nodes, delta("a", 10), claim("a", "done"))]
    report = lead(repository, tmp_path, port=InlinePort(Script(*acts)), expected=("a",), **LEASE)
    assert beats(repository) >= 1
    assert merged_of(report) == {"a": "1-10"}


def test_a_standby_leaves_a_run_alone_that_has_ended(tmp_path):
    repository = MemoryRepository()
    send(repository, delta("a", 10), claim("a", "done"))
    first = lead(repository, tmp_path / "m", expected=("a",))
    commit = repository.head_commit()
    second = lead(repository, tmp_path / "s", master_id="s", standby=True, expected=("a",), **LEASE)
    assert repository.head_commit() == commit
    assert second.model_sha256 == first.model_sha256


def test_a_standby_waits_for_a_first_global_and_ends_when_asked(tmp_path):
    repository = MemoryRepository()
    commit = repository.head_commit()
    acts = [wait] * 100
    standby = master_of(
        repository,
        tmp_path,
        standby=True,
        port=InlinePort(Script(*acts, lambda: standby.stop("enough"))),
        **LEASE,
    )
    report = standby.run()
    assert (report.stop_reason, report.outer_steps, report.commits) == ("enough", 0, 0)
    assert repository.head_commit() == commit


def test_a_standby_takes_over_with_the_same_weights_under_the_next_epoch(tmp_path):
    repository = MemoryRepository()
    send(repository, delta("a", 10))

    def die() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lead(repository, tmp_path / "m", port=InlinePort(die), expected=("a",), **LEASE)
    before = published(repository)
    assert (before.outer_step, before.master_epoch) == (1, 1)
    seen: list[object] = []

    def look() -> None:
        card = published(repository)
        if card.master_epoch == 2 and not seen:
            seen.append((card.master_id, card.outer_step, card.model_sha256))
            send(repository.another(), delta("a", 20, base=1), claim("a", "done"))

    report = lead(
        repository,
        tmp_path / "s",
        master_id="s",
        standby=True,
        port=InlinePort(look),
        expected=("a",),
        **LEASE,
    )
    assert seen == [("s", 1, before.model_sha256)]
    assert merged_of(report) == {"a": "1-20"}


def test_a_master_that_finds_another_epoch_at_a_look_stops(tmp_path):
    repository = MemoryRepository()
    others = repository.another()

    def other_takes_over() -> None:
        if published(others).master_epoch == 1:
            send(others, claim("a", "done"))
            lead(others, tmp_path / "other", master_id="m", expected=("a",))

    with pytest.raises(SupersededError, match="led by another master"):
        lead(repository, tmp_path / "m", port=InlinePort(other_takes_over), expected=("a",))
    assert published(repository).closed


@pytest.mark.parametrize(
    "point",
    [
        "before the commit",
        pytest.param("after the outer step", marks=pytest.mark.slow),
        pytest.param("after the blobs", marks=pytest.mark.slow),
    ],
)
def test_a_fenced_master_that_wakes_loses_and_doubles_nothing(
    place: Place, tmp_path: Path, point: str, request: pytest.FixtureRequest
) -> None:
    repository = place.repository()
    send(repository, delta("a", 10), delta("b", 10))
    options = {"expected": ("a", "b"), "lease_seconds": 1.0}
    sleeper = start(
        place,
        tmp_path / "m",
        point=point,
        time=1 if point == "after the outer step" else 2,
        with_signal=signal.SIGSTOP,
        **options,
    )
    request.addfinalizer(sleeper.kill)
    _wait_until(lambda: _state_of(sleeper.pid) == "T")
    assert published(repository).outer_step == 0
    standby = master_of(
        place.repository(), tmp_path / "s", master_id="s", standby=True, port=WallPort(), **options
    )
    reports = []
    thread = threading.Thread(target=lambda: reports.append(standby.run()), daemon=True)
    thread.start()
    _wait_until(lambda: published(repository).outer_step == 1)
    assert published(repository).master_id == "s"
    send(repository, delta("a", 20, base=1))
    os.kill(sleeper.pid, signal.SIGCONT)
    sleeper.join(60)
    assert sleeper.exitcode == 1
    send(repository, claim("a", "done"), claim("b", "done"))
    thread.join(60)
    assert merged_of(reports[0]) == {"a": "1-20", "b": "1-10"}
    card = published(repository)
    assert (card.master_id, card.master_epoch, card.outer_step) == ("s", 2, 2)
    assert deltas_listed(repository) == []


def _state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.1)
