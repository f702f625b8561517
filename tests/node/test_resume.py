"""A node that was cut off goes on as if nothing had happened, by the rules of the protocol."""

import errno
import os
import shutil
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from node_scene import (
    SETTINGS,
    ForgetfulStream,
    Life,
    PowerCut,
    Stream,
    Wire,
    begin,
    publish,
    repository_with,
    row,
    scripted_weights,
)
from safetensors.torch import load

from ray_diloco.errors import DiskError, QuotaExceeded
from ray_diloco.hub.memory import MemoryRepository
from ray_diloco.node.weights import Weights
from ray_diloco.protocol.delta_card import DeltaCard
from ray_diloco.protocol.paths import parse_delta_path
from ray_diloco.tensors.safetensors_header import parse_header

STEPS = 22
REVEALED = {0: 0, 3: 1, 8: 2, 13: 3, 17: 4}
"""After so many local steps this outer step is out."""


class Script:
    """Reveals globals by the place in the data: a restart sees what was seen there before."""

    def __init__(self, repository: MemoryRepository, stream: Stream) -> None:
        self._repository = repository
        self._stream = stream
        self._published = -1

    def before(self, name: str) -> None:
        outer_step = max(step for at, step in REVEALED.items() if at <= self._stream.position)
        if name == "head" and outer_step != self._published:
            self._published = outer_step
            publish(self._repository, outer_step, scripted_weights(outer_step))


@dataclass(frozen=True)
class Cut:
    """The power fails at the ``number``-th call of the repository, or at the draw of a batch."""

    number: int | None = None
    landed: bool = False
    draw: int | None = None


def play(folder: Path, *cuts: Cut, **options: Any) -> tuple[Life, Any, MemoryRepository]:
    """Lives one after the other, each cut off but the last."""
    repository = MemoryRepository()
    for life, cut in enumerate([*cuts, Cut()]):
        stream = Stream(cut_at=cut.draw)
        script, calls = Script(repository, stream), Counter[str]()

        def count(name: str, *, after: bool, cut: Cut = cut, calls: Counter[str] = calls) -> None:
            calls["after" if after else "before"] += 1
            if calls["after" if after else "before"] == cut.number and cut.landed == after:
                raise PowerCut(name)

        def before(name: str, script: Script = script, count: Any = count) -> None:
            script.before(name)
            count(name, after=False)

        def after(name: str, count: Any = count) -> None:
            count(name, after=True)

        wire = Wire(repository, before=before, after=after)
        now = begin(wire, folder, stream=stream, steps=STEPS, resume=life > 0, **options)
        try:
            return now, now.node.run(), repository
        except PowerCut:
            continue
    raise AssertionError("the last life was cut off as well")


def deltas(repository: MemoryRepository) -> dict[str, tuple[DeltaCard, dict[str, torch.Tensor]]]:
    """All that were sent, by path."""
    found = {}
    commit = repository.head_commit()
    for entry in repository.list_files("nodes", commit=commit):
        if parse_delta_path(entry.path) is not None:
            content = repository.read(entry.path, commit=commit, limit=1 << 20)
            header = parse_header(content, file_size=len(content))
            found[entry.path] = (
                DeltaCard.from_header(header.metadata, path=entry.path),
                load(content),
            )
    return found


def covered(repository: MemoryRepository) -> Counter[int]:
    return Counter(step for card, _ in deltas(repository).values() for step in card.covers or ())


def assert_same(one: Any, other: Any) -> None:
    """Equal to the last bit."""
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        assert one == other


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nobody interrupts."""
    life, report, repository = play(tmp_path_factory.mktemp("whole"))
    assert report.local_steps == STEPS
    assert report.installs == len(REVEALED)
    assert covered(repository) == Counter(range(1, STEPS + 1))
    return life.trainer.state_dict(), report, deltas(repository)


FIRST_RECORD, LAST_CALL = 18, 62
CALLS = [Cut(number=number, landed=landed) for number in range(20, 62, 9) for landed in (0, 1)]
DRAWS = [Cut(draw=draw) for draw in (4, 9, 21)]
ALL = [
    Cut(number=number, landed=landed)
    for number in range(FIRST_RECORD, LAST_CALL)
    for landed in (0, 1)
]


def assert_continued(whole: Any, folder: Path, *cuts: Cut, **options: Any) -> None:
    """The run that was cut ends as the whole one did, bit for bit."""
    life, report, repository = play(folder, *cuts, **options)
    state, expected, sent = whole
    assert_same(life.trainer.state_dict(), state)
    tensors = {path: content for path, (_, content) in deltas(repository).items()}
    assert_same(tensors, {path: content for path, (_, content) in sent.items()})
    assert covered(repository) == Counter(range(1, STEPS + 1))
    assert (report.local_steps, report.tokens, report.dropped) == (STEPS, expected.tokens, "")


@pytest.mark.parametrize("cut", [*CALLS, *DRAWS], ids=str)
def test_the_continued_run_equals_the_uninterrupted_one_bit_for_bit(cut, whole, tmp_path):
    assert_continued(whole, tmp_path, cut)


@pytest.mark.parametrize("cut", [CALLS[3], CALLS[6], *DRAWS], ids=str)
def test_so_it_does_from_a_checkpoint_between_two_boundaries(cut, whole, tmp_path):
    assert_continued(whole, tmp_path, cut, every_steps=3)


def test_so_it_does_after_many_cuts(whole, tmp_path):
    cuts = [Cut(draw=7), Cut(number=12, landed=True), Cut(number=9), Cut(draw=16), Cut(number=8)]
    assert_continued(whole, tmp_path, *cuts, every_steps=2)


@pytest.mark.slow
@pytest.mark.parametrize("every_steps", [None, 1, 3])
@pytest.mark.parametrize("cut", ALL, ids=str)
def test_so_it_does_wherever_it_was_cut(cut, every_steps, whole, tmp_path):
    assert_continued(whole, tmp_path, cut, every_steps=every_steps)


# -- what else a restart meets ---------------------------------------------------------------------


def cut_off(folder: Path, repository: Any, *, at: int, **options: Any) -> None:
    """A life that ends when it draws the batch after ``at`` steps."""
    with pytest.raises(PowerCut):
        begin(repository, folder, stream=Stream(cut_at=at), **options).node.run()


def test_data_that_cannot_save_its_position_is_fast_forwarded_and_the_report_says_so(tmp_path):
    repository = repository_with()
    cut_off(tmp_path, repository, at=10)
    second = begin(repository, tmp_path, stream=ForgetfulStream(), steps=12, resume=True)
    report = second.node.run()
    assert report.data_note == "fast-forwarded by 8 batches: the data cannot save its position"
    whole = begin(repository_with(), tmp_path / "whole", stream=ForgetfulStream(), steps=12)
    assert whole.node.run().data_note is None
    assert_same(second.trainer.model.state_dict(), whole.trainer.model.state_dict())


def test_a_checkpoint_behind_what_was_sent_gives_its_work_up_and_counts_it(tmp_path):
    repository = repository_with()
    cut_off(tmp_path, repository, at=10)
    shutil.rmtree(max((tmp_path / "checkpoints").iterdir()))
    publish(repository, 1, scripted_weights(1), nodes=row("first", 4))
    second = begin(repository, tmp_path, steps=14, resume=True)
    report = second.node.run()
    assert [each["lost"] for each in second.of("checkpoint_behind")] == ["1-8"]
    assert (report.lost, report.first_step, report.local_steps) == ("1-8", 0, 14)
    assert covered(repository) == Counter(range(1, 15))
    assert second.of("install")[0]["policy"] == "replace"


def test_what_the_master_merged_is_more_than_the_checkpoint_knows_as_well(tmp_path):
    repository = repository_with()
    cut_off(tmp_path, repository, at=6)
    paths = [entry.path for entry in repository.list_files("nodes/n0", commit=_head(repository))]
    gone = [path for path in paths if "delta" in path]
    repository.commit("merged", deletions=gone)
    publish(repository, 1, scripted_weights(1), nodes=row("first", 8))
    report = begin(repository, tmp_path, steps=12, resume=True).node.run()
    assert report.lost == "1-8"
    assert covered(repository) == Counter(range(9, 13))


def test_a_name_that_another_incarnation_had_since_begins_anew(tmp_path):
    repository = repository_with()
    cut_off(tmp_path, repository, at=10)
    other = begin(repository, tmp_path / "other", nonce="other", takeover=True, steps=4)
    other_report = other.node.run()
    third = begin(repository, tmp_path, nonce="third", steps=30, resume=True)
    report = third.node.run()
    assert [each["unsent"] for each in third.of("checkpoint_outlived")] == ["5-8"]
    assert other_report.first_step >= 8
    assert (report.nonce, report.first_step) == ("third", other_report.first_step + 4)
    assert not [n for n, count in covered(repository).items() if count > 1]


def test_without_a_checkpoint_the_steps_of_the_name_count_towards_the_limit(tmp_path):
    repository = repository_with()
    cut_off(tmp_path / "lost", repository, at=10)
    second = begin(repository, tmp_path, nonce="second", steps=20, resume=True, takeover=True)
    report = second.node.run()
    assert (report.nonce, report.first_step, report.local_steps) == ("second", 12, 12)


class FullDisk(Weights):
    """No checkpoint of theirs fits."""

    def save_baseline(self, path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def test_a_step_that_was_trained_when_the_disk_gave_out_counts(tmp_path):
    """The upload after step 4 runs on beside step 5."""
    beside = replace(SETTINGS, async_delta_upload=True, async_global_poll=True)
    repository = repository_with()
    first = begin(repository, tmp_path, settings=beside, weights_type=FullDisk)
    with pytest.raises(DiskError, match="No space left on device; make room"):
        first.node.run()
    (failed,) = first.of("node_failed")
    status = first.node.status()
    assert (failed["local_step"], status.local_step, first.trainer.local_step) == (5, 5, 5)
    assert failed["tokens"] == status.tokens == first.trainer.tokens
    report = begin(repository, tmp_path, nonce="second", resume=True).node.run()
    assert (report.first_step, report.local_steps) == (5, 19)


def test_an_older_global_never_rolls_a_restarted_node_back(tmp_path):
    repository = repository_with(outer_step=5)
    cut_off(tmp_path, repository, at=10)
    publish(repository, 3, scripted_weights(3))
    second = begin(repository, tmp_path, steps=12, resume=True)
    second.node.run()
    assert not second.of("install")
    assert len(second.of("global_refused")) == 1


def test_a_job_that_a_global_already_has_is_not_sent_again(tmp_path):
    repository = repository_with()
    cut_off(tmp_path, repository, at=6)
    publish(repository, 1, scripted_weights(1), nodes=row("first", 4))
    repository.commit("merged", deletions=["nodes/n0/delta_4.safetensors"])
    begin(repository, tmp_path, steps=8, resume=True).node.run()
    assert covered(repository) == Counter(range(5, 9))


def test_what_could_not_be_sent_before_the_end_is_kept(tmp_path):
    repository = repository_with()

    def unreachable(name: str) -> None:
        if name == "commit" and repository.list_files("nodes/n0", commit=_head(repository)):
            raise QuotaExceeded("no more commits this hour")

    blocked = Wire(repository, before=unreachable)
    patient = replace(SETTINGS, async_delta_upload=True, stop_timeout=0.5)
    first = begin(blocked, tmp_path, settings=patient, steps=10).node.run()
    assert first.unsent == "1-10"
    report = begin(repository, tmp_path, steps=14, resume=True).node.run()
    assert (report.unsent, report.local_steps) == ("", 14)
    assert covered(repository) == Counter(range(1, 15))


def test_only_so_many_checkpoints_are_kept(tmp_path):
    repository = repository_with()
    life = begin(repository, tmp_path, keep=1, steps=12)
    life.node.run()
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1


def _head(repository: MemoryRepository) -> str:
    return repository.head_commit()
