"""Checkpoints are whole or not there."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ray_diloco.errors import ConfigError, DiskError, disk_error
from ray_diloco.node.actions import Job
from ray_diloco.node.checkpoint import FACTS, CheckpointShelf, Facts, link
from ray_diloco.node.saving import save_tensors
from ray_diloco.node.settings import CheckpointSettings
from ray_diloco.node.standing import Standing
from ray_diloco.node.tally import Tally
from ray_diloco.protocol.ranges import StepRanges
from ray_diloco.protocol.work import Work

WORK = Work(steps=StepRanges.parse("3-4,7-9"), tokens=50, loss_sum=0.1 + 0.2)
JOB = Job(
    local_step=9,
    work=WORK,
    base_outer_step=2,
    oldest_base_outer_step=-1,
    number=11,
    encoded=True,
    after_install=True,
)
TALLY = Tally(
    dropped=StepRanges.of(1, 2),
    lost=StepRanges.of(5, 6),
    deltas_landed=4,
    rejected={3: (StepRanges.of(3, 3), "norm")},
    awaiting={8: StepRanges.of(7, 8)},
)
STANDING = Standing(
    local_step=10,
    unsent=WORK,
    base_outer_step=2,
    oldest_base=1,
    seen=(1, 2),
    bad_in_a_row=1,
    tally=TALLY,
    job=JOB,
)
FACTS_OF_N0 = Facts(
    run_id="run-1",
    node_id="n0",
    nonce="abc",
    first_step=2,
    schema="f" * 8,
    last_number=11,
    peer_led=True,
    snapshot=None,
    standing=STANDING,
)


def facts(local_step: int = 10, **changed: object) -> Facts:
    standing = replace(STANDING, local_step=local_step)
    return replace(FACTS_OF_N0, standing=standing, **changed)


def fill(folder: Path) -> None:
    (folder / "weights").write_bytes(b"weights")


def newest_step(shelf: CheckpointShelf) -> int | None:
    found = shelf.newest(node_id="n0", run_id="run-1")
    return None if found is None else found.facts.standing.local_step


@pytest.fixture
def shelf(tmp_path) -> CheckpointShelf:
    return CheckpointShelf(tmp_path / "checkpoints", keep=2)


def test_a_checkpoint_comes_back_as_it_was_saved(shelf):
    shelf.save(facts(), fill)
    found = shelf.newest(node_id="n0", run_id="run-1")
    assert found is not None
    assert found.facts == facts()
    assert (found.folder / "weights").read_bytes() == b"weights"


def test_the_newest_comes_back_and_only_so_many_stay(shelf, tmp_path):
    for local_step in (10, 30, 20):
        shelf.save(facts(local_step), fill)
    assert newest_step(shelf) == 20
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


def test_an_empty_shelf_has_none(shelf):
    assert newest_step(shelf) is None


@pytest.mark.parametrize("changed", [{"node_id": "n1"}, {"run_id": "run-2"}])
def test_what_another_node_or_run_left_is_not_taken(changed, shelf):
    shelf.save(facts(), fill)
    shelf.save(facts(20, **changed), fill)
    assert newest_step(shelf) == 10


def test_a_worker_that_does_not_know_its_run_takes_that_of_its_checkpoint(shelf):
    shelf.save(facts(), fill)
    found = shelf.newest(node_id="n0", run_id="")
    assert found is not None
    assert found.facts.run_id == "run-1"


DAMAGES: list[Callable[[Path], object]] = [
    lambda folder: (folder / "weights").write_bytes(b"wEights"),
    lambda folder: (folder / "weights").write_bytes(b"weigh"),
    lambda folder: (folder / "weights").unlink(),
    lambda folder: (folder / FACTS).unlink(),
    lambda folder: (folder / FACTS).write_text('{"version": 1}'),
    lambda folder: (folder / FACTS).write_text('{"version": 99}'),
    lambda folder: (folder / FACTS).write_text("[]"),
    lambda folder: (folder / FACTS).write_bytes(b"\xff"),
    lambda folder: (folder / FACTS).write_text((folder / FACTS).read_text().replace("3-4", "4-3")),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=range(len(DAMAGES)))
def test_a_damaged_one_is_passed_over(damage, shelf, tmp_path):
    shelf.save(facts(10), fill)
    shelf.save(facts(20), fill)
    damage(tmp_path / "checkpoints" / "00000002")
    assert newest_step(shelf) == 10


def test_one_that_could_not_be_written_leaves_nothing(shelf, tmp_path):
    shelf.save(facts(10), fill)

    def fail(folder: Path) -> None:
        fill(folder)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        shelf.save(facts(20), fail)
    assert [each.name for each in (tmp_path / "checkpoints").iterdir()] == ["00000001"]
    assert newest_step(shelf) == 10


def test_what_a_killed_process_was_writing_is_cleared_away(shelf, tmp_path):
    partial = tmp_path / "checkpoints" / ".00000001.part"
    partial.mkdir()
    fill(partial)
    CheckpointShelf(tmp_path / "checkpoints", keep=2)
    assert not partial.exists()


def test_one_that_was_put_aside_is_never_gone_on_from(shelf, tmp_path):
    shelf.save(facts(10), fill)
    shelf.put_aside()
    assert newest_step(shelf) is None
    assert (tmp_path / "checkpoints" / "outlived" / "00000001" / "weights").exists()
    shelf.save(facts(5), fill)
    shelf.put_aside()
    assert len(list((tmp_path / "checkpoints" / "outlived").iterdir())) == 1


def test_nobody_else_may_read_it(shelf, tmp_path):
    shelf.save(facts(), fill)
    folders = [tmp_path / "checkpoints", tmp_path / "checkpoints" / "00000001"]
    assert all(folder.stat().st_mode & 0o777 == 0o700 for folder in folders)
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in folders[1].iterdir())


def test_a_link_costs_no_space_and_replaces_what_was_there(tmp_path):
    source, destination = tmp_path / "source", tmp_path / "destination"
    source.write_text("new")
    destination.write_text("old")
    link(source, destination)
    assert destination.samefile(source)


@pytest.mark.parametrize("field", [{"every_steps": 0}, {"keep_last": -1}])
def test_settings_that_mean_nothing_are_refused(field):
    with pytest.raises(ConfigError, match=next(iter(field))):
        CheckpointSettings(**field).check()


def test_a_disk_fault_says_where_and_what_to_do():
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/state/n0/delta")
    found = disk_error("node 'n0'", error, folder="/state/n0")
    assert isinstance(found, DiskError)
    assert str(found) == (
        "node 'n0' cannot write to /state/n0/delta: No space left on device; "
        "make room and start again with run.resume"
    )


def test_a_full_disk_is_told_as_such_when_torch_writes():
    with pytest.raises(OSError, match="No space left") as full:
        save_tensors({"weights": torch.zeros(10**5)}, Path("/dev/full"))
    assert full.value.errno == errno.ENOSPC


def test_what_torch_wrote_comes_back(tmp_path):
    save_tensors({"weights": torch.arange(10**5), "count": 3}, tmp_path / "state")
    found = torch.load(tmp_path / "state", weights_only=True)
    assert found["count"] == 3
    assert torch.equal(found["weights"], torch.arange(10**5))


FULL_DISK = """\
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from node_scene import begin, repository_with
from ray_diloco.errors import DiskError
import torch

torch.set_num_threads(1)
folder, ballast = Path(sys.argv[1]), Path(sys.argv[1]) / "ballast"
repository = repository_with()

def fill_up(name):
    if name == "stage":
        calls.append(name)
    if len(calls) == 2 and not ballast.exists():
        with ballast.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(512)):
                    pass
            except OSError:
                pass

calls = []
from node_scene import Wire
try:
    begin(Wire(repository, after=fill_up), folder / "n0", steps=24).node.run()
except DiskError as error:
    print(error)
ballast.unlink()
report = begin(repository, folder / "n0", steps=24, resume=True).node.run()
print(report.local_steps, report.first_step, repr(report.lost), repr(report.unsent))
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("mount"),
    reason="needs root, for tmpfs; runs in .ci/run as root",
)
def test_a_node_on_a_full_disk_says_so_and_goes_on_when_there_is_room(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount tmpfs; runs as root outside containers")
    try:
        program = FULL_DISK.format(tests=str(Path(__file__).parent))
        command = [sys.executable, "-c", program, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    said, report = done.stdout.splitlines()
    assert said.startswith(f"node 'n0' cannot write to {tmp_path}")
    assert "No space left on device" in said
    assert report == "24 0 '' ''"
