"""A master from its first global to its last, over a repository in memory."""

import errno
import resource
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from master_scene import (
    RUN,
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

from ray_diloco.errors import (
    EntryMissing,
    ForeignRunError,
    RevisionMissing,
    TrainingError,
    TransientHubError,
)
from ray_diloco.hub.memory import MemoryRepository
from ray_diloco.hub.repository import Addition
from ray_diloco.master.publishing import SupersededError
from ray_diloco.protocol.global_card import CARD_LIMIT, GlobalCard
from ray_diloco.protocol.paths import CARD_PATH

Act = Callable[[], object]


def playing(*acts: Act) -> InlinePort:
    """One act of the nodes each time that the master idles."""
    left = iter(acts)
    return InlinePort(lambda: next(left, lambda: None)())


def test_deltas_that_lie_there_are_merged_in_one_round(tmp_path):
    repository = MemoryRepository()
    send(repository, claim("a", "done"), claim("b", "done"), delta("a", 10), delta("b", 10))
    report = lead(repository, tmp_path, expected=("a", "b"))
    assert merged_of(report) == {"a": "1-10", "b": "1-10"}
    assert report.outer_steps == 1
    assert deltas_listed(repository) == []
    card = published(repository)
    assert (card.outer_step, card.closed, card.stop) == (1, True, "every node is done")


def test_a_master_that_is_asked_to_stop_does_not_wait_for_a_node_that_trains_on(tmp_path):
    repository = MemoryRepository()
    nodes = repository.another()
    send(repository, claim("a"), claim("b"))
    port = playing(
        lambda: master.stop("enough"),
        lambda: send(nodes, delta("a", 10), claim("a", "done"), delta("b", 10)),
        *(lambda step=step: send(nodes, delta("b", step)) for step in range(20, 2000, 10)),
    )
    master = master_of(repository, tmp_path, port=port, expected=("a", "b"), stop_timeout=2.0)
    report = master.run()
    assert 6.0 <= port.now() / 1e6 <= 7.0
    assert merged_of(report)["a"] == "1-10"
    assert report.stop_reason == "enough"
    card = published(repository)
    assert (card.closed, card.stop) == (False, None)


# -- rounds ----------------------------------------------------------------------------------------


def test_a_round_merges_at_most_so_many_the_earliest_of_each_node_first(tmp_path):
    repository = MemoryRepository()
    send(repository, *(delta(node, step) for node in "abc" for step in (10, 20)))
    send(repository, *(claim(node, "done") for node in "abc"))
    events: list[list[tuple[str, int]]] = []

    def record(event: str, **fields: Any) -> None:
        if event == "publication":
            events.append([(each["node"], each["local_step"]) for each in fields["deltas"]])

    report = lead(
        repository, tmp_path, expected=tuple("abc"), max_deltas_per_round=4, record=record
    )
    assert events == [[("a", 10), ("a", 20), ("b", 10), ("c", 10)], [("b", 20), ("c", 20)], []]
    assert merged_of(report) == dict.fromkeys("abc", "1-20")


def test_a_refused_delta_never_passes_the_mark_of_an_earlier_one_that_waits(tmp_path):
    repository = MemoryRepository()
    send(repository, *(delta(node, 10) for node in "abc"))
    send(repository, delta("c", 20, run_id="other"))
    send(repository, *(claim(node, "done") for node in "abc"))
    report = lead(repository, tmp_path, expected=tuple("abc"), max_deltas_per_round=2)
    assert merged_of(report) == dict.fromkeys("abc", "1-10")
    assert report.accounts["c"]["nonce-c"]["rejected"] == "11-20"


def test_a_round_of_hundreds_of_peers_is_merged(tmp_path):
    repository = MemoryRepository()
    names = tuple(f"n{number:03d}" for number in range(300))
    send(repository, *(delta(name, 10) for name in names), *(claim(name, "done") for name in names))
    report = lead(repository, tmp_path, expected=names)
    assert (report.outer_steps, report.deltas_merged) == (2, 300)


def test_a_delta_that_is_too_stale_is_refused_with_its_staleness(tmp_path):
    repository = MemoryRepository()
    nodes = repository.another()
    acts: list[Act] = [
        lambda step=step: send(nodes, delta("a", step, base=step // 10 - 1))
        for step in (10, 20, 30)
    ]
    acts.append(lambda: send(nodes, delta("b", 10, base=0), delta("a", 40, base=1)))
    acts.append(lambda: send(nodes, claim("a", "done"), claim("b", "done")))
    report = lead(repository, tmp_path, port=playing(*acts), expected=("a", "b"), max_staleness=2)
    assert [(each["node"], each["reason"]) for each in report.rejected] == [
        ("b", "staleness 3 is above max_staleness=2")
    ]
    assert report.staleness == {0: 3, 2: 1}


def test_merged_deltas_stay_for_as_many_outer_steps_as_asked(tmp_path):
    repository = MemoryRepository()
    nodes = repository.another()
    seen: list[list[str]] = []
    acts: list[Act] = []
    for step in (10, 20, 30):
        acts += [
            lambda step=step: send(nodes, delta("a", step)),
            lambda: seen.append(deltas_listed(nodes)),
        ]
    lead(
        repository,
        tmp_path,
        port=playing(*acts, lambda: send(nodes, claim("a", "done"))),
        expected=("a",),
        keep_merged=2,
    )
    assert [len(each) for each in seen] == [1, 2, 2]
    assert seen[-1] == ["nodes/a/delta_20.safetensors", "nodes/a/delta_30.safetensors"]


def test_the_cache_holds_nothing_that_was_merged(tmp_path):
    repository = MemoryRepository()
    (tmp_path / "deltas").mkdir()
    (tmp_path / "deltas" / ".arriving-1").write_bytes(b"half")
    send(repository, delta("a", 10), claim("a", "done"))
    lead(repository, tmp_path, expected=("a",))
    assert list((tmp_path / "deltas").iterdir()) == []
    assert len(list((tmp_path / "globals").iterdir())) <= 3  # model, last state, what is spare


def test_what_was_downloaded_before_a_restart_is_not_fetched_again(tmp_path):
    repository = MemoryRepository()
    send(repository, *(delta("a", step) for step in (10, 20, 30)), claim("a", "done"))

    def die(event: str, **_: Any) -> None:
        if event == "publication":
            raise KeyboardInterrupt

    options = {"expected": ("a",), "max_deltas_per_round": 1}
    with pytest.raises(KeyboardInterrupt):
        lead(repository, tmp_path, record=die, **options)
    assert len(list((tmp_path / "deltas").iterdir())) == 2
    fetched: list[str] = []

    class Noting(MemoryRepository):
        def fetch(self, path: str, **fields: Any) -> str:
            fetched.append(path)
            return super().fetch(path, **fields)

    report = lead(Noting(store=repository._store), tmp_path, **options)
    assert merged_of(report) == {"a": "1-30"}
    assert fetched == ["global/latest.safetensors", "global/outer_state.safetensors"]


def test_a_round_without_new_deltas_fetches_nothing(tmp_path):
    repository = MemoryRepository()
    down: list[int] = []
    acts: list[Act] = [lambda: down.append(repository.traffic.bytes_down)] * 5
    acts += [lambda: send(repository.another(), claim("a", "done"))]
    lead(repository, tmp_path, port=playing(*acts), expected=("a",))
    assert down == [0] * 5


# -- a conflict ------------------------------------------------------------------------------------


class Meddled(MemoryRepository):
    """Something happens right before the commits whose message begins so, once each."""

    def meddle(self, **happenings: Act) -> "Meddled":
        self._happenings = {key.replace("_", " "): act for key, act in happenings.items()}
        return self

    def commit(self, message: str, **fields: Any) -> str:
        for start in list(self._happenings):
            if message.startswith(start):
                self._happenings.pop(start)()
        return super().commit(message, **fields)


def test_a_delta_that_lands_during_the_commit_waits_for_the_next_round(tmp_path):
    repository = Meddled().meddle(
        outer_step_1=lambda: send(repository.another(), delta("a", 20), claim("a", "done"))
    )
    send(repository.another(), delta("a", 10))
    report = lead(repository, tmp_path, expected=("a",))
    assert merged_of(report) == {"a": "1-20"}
    assert (report.outer_steps, report.conflicts) == (2, 1)


def test_a_run_does_not_close_over_a_delta_that_has_just_landed(tmp_path):
    repository = Meddled().meddle(outer_step_0=lambda: None)
    send(repository.another(), delta("a", 10), claim("a", "done"))
    late = {"outer step 1: 0": lambda: send(repository.another(), delta("a", 20))}
    repository.meddle(**late)
    report = lead(repository, tmp_path, expected=("a",))
    assert merged_of(report) == {"a": "1-20"}


class LostAnswers(MemoryRepository):
    """A commit of an outer step lands, and neither that nor its fate can be learned for a while."""

    asked = 0

    def commit(self, message: str, **fields: Any) -> str:
        commit = super().commit(message, **fields)
        if message.startswith("outer step 2"):
            self.asked = 2
            raise TransientHubError("500", "unknown")
        return commit

    def head_commit(self) -> str:
        if self.asked:
            raise TransientHubError("500", "unknown")
        return super().head_commit()


def test_a_publication_whose_fate_was_never_learned_is_where_the_master_goes_on(tmp_path, caplog):
    repository = LostAnswers()
    nodes = MemoryRepository(store=repository._store)
    acts: list[Act] = [lambda: send(nodes, delta("a", 20))]

    def recover() -> None:
        if repository.asked and published(nodes).outer_step == 2:
            repository.asked = 0
            send(nodes, delta("a", 30), claim("a", "done"))

    send(nodes, delta("a", 10))
    report = lead(repository, tmp_path, port=playing(*acts, *[recover] * 50), expected=("a",))
    assert merged_of(report) == {"a": "1-30"}
    assert report.outer_steps == 3
    assert "the hub has not answered for long" in caplog.text
    calm = MemoryRepository()
    send(calm, *(delta("a", step) for step in (10, 20, 30)), claim("a", "done"))
    same = lead(calm, tmp_path / "calm", expected=("a",), max_deltas_per_round=1)
    assert report.model_sha256 == same.model_sha256


def test_a_foreign_global_is_never_overwritten(tmp_path):
    repository = Meddled().meddle(
        outer_step_1=lambda: send(
            repository.another(),
            Addition(
                path=CARD_PATH,
                source=replace(published(repository), master_epoch=9, publication_id="p").to_json(),
            ),
        )
    )
    send(repository.another(), delta("a", 10))
    with pytest.raises(SupersededError):
        lead(repository, tmp_path, expected=("a",))
    assert published(repository).master_epoch == 9
    assert deltas_listed(repository) == ["nodes/a/delta_10.safetensors"]


# -- squash ----------------------------------------------------------------------------------------


def commits_behind(repository: MemoryRepository) -> int:
    return len(repository._store.history.commits)


def test_the_history_is_squashed_between_rounds(tmp_path):
    repository = MemoryRepository()
    nodes = repository.another()
    behind: list[int] = []
    acts: list[Act] = []
    for step in range(10, 210, 10):
        acts += [
            lambda step=step: send(nodes, delta("a", step)),
            lambda: behind.append(commits_behind(nodes)),
        ]
    report = lead(
        repository,
        tmp_path,
        port=playing(*acts, lambda: send(nodes, claim("a", "done"))),
        expected=("a",),
        squash_every=6,
    )
    assert merged_of(report) == {"a": "1-200"}
    assert max(behind) <= 8


def test_readers_go_on_while_the_history_is_squashed(tmp_path):
    repository = MemoryRepository()
    stop = threading.Event()
    seen: list[list[int]] = [[], []]
    troubles: list[BaseException] = []

    def read(place: int) -> None:
        """As a node does: pin a commit, and read card and model there."""
        handle = repository.another()
        while not stop.is_set():
            try:
                card, _ = _read_global(handle, tmp_path / f"reader{place}")
                seen[place].append(card.outer_step)
            except (RevisionMissing, EntryMissing):
                continue
            except BaseException as error:
                troubles.append(error)
                return

    readers = [threading.Thread(target=read, args=(place,), daemon=True) for place in range(2)]
    for reader in readers:
        reader.start()
    nodes = repository.another()
    acts: list[Act] = [
        lambda step=step: send(nodes, delta("a", step)) for step in range(10, 210, 10)
    ]
    report = lead(
        repository,
        tmp_path / "m",
        port=playing(*acts, lambda: send(nodes, claim("a", "done"))),
        expected=("a",),
        squash_every=2,
    )
    stop.set()
    for reader in readers:
        reader.join()
    assert troubles == []
    assert all(steps == sorted(steps) for steps in seen)
    assert merged_of(report) == {"a": "1-200"}


def _read_global(repository: MemoryRepository, folder: Path) -> tuple[GlobalCard, str]:
    commit = repository.head_commit()
    card = GlobalCard.from_json(repository.read(CARD_PATH, commit=commit, limit=CARD_LIMIT))
    found = repository.fetch(
        card.model_file, commit=commit, destination=folder / "model", sha256=card.model_sha256
    )
    return card, found


def test_a_master_whose_own_commit_was_squashed_away_looks_again(tmp_path):
    repository = MemoryRepository()
    listings = iter([lambda: None, lambda: repository.another().squash("somebody else")])

    class Squashed(MemoryRepository):
        def list_files(self, folder: str, *, commit: str) -> Any:
            next(listings, lambda: None)()
            return super().list_files(folder, commit=commit)

    send(repository, delta("a", 10), claim("a", "done"))
    report = lead(Squashed(store=repository._store), tmp_path, expected=("a",))
    assert merged_of(report) == {"a": "1-10"}


# -- starting again --------------------------------------------------------------------------------


def test_a_finished_run_goes_on_when_asked_and_its_stop_is_gone(tmp_path):
    repository = MemoryRepository()
    send(repository, delta("a", 10), claim("a", "done"))
    lead(repository, tmp_path, expected=("a",))
    assert published(repository).stop is not None
    opened: list[GlobalCard] = []

    def node_returns() -> None:
        opened.append(published(repository))
        send(repository.another(), claim("a", nonce="second"), delta("a", 20, nonce="second"))

    ends = [lambda: None, lambda: send(repository.another(), claim("a", "done", nonce="second"))]
    report = lead(
        repository, tmp_path, port=playing(node_returns, *ends), expected=("a",), resume=True
    )
    assert (opened[0].stop, opened[0].closed, opened[0].master_epoch) == (None, False, 2)
    assert merged_of(report) == {"a": "1-10,11-20"}


def test_a_master_that_starts_again_after_its_last_word_has_nothing_to_do(tmp_path):
    repository = MemoryRepository()
    send(repository, delta("a", 10), claim("a", "done"))
    first = lead(repository, tmp_path, expected=("a",))
    commit = repository.head_commit()
    again = lead(repository, tmp_path, expected=("a",))
    assert repository.head_commit() == commit
    assert (again.model_sha256, again.accounts) == (first.model_sha256, first.accounts)


def test_a_stop_that_was_published_outlives_a_restart(tmp_path):
    repository = MemoryRepository()
    send(repository, delta("a", 10))

    def die() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lead(repository, tmp_path, port=InlinePort(die), expected=("a",), max_tokens=5)
    assert published(repository).stop == "run.max_tokens=5 reached"
    send(repository, claim("a", "done"))
    report = lead(repository, tmp_path, expected=("a",), max_tokens=5)
    assert report.stop_reason == "run.max_tokens=5 reached"
    assert published(repository).master_epoch == 2


def test_another_run_is_refused_without_resume(tmp_path):
    repository = MemoryRepository()
    send(repository, delta("a", 10), claim("a", "done"))
    lead(repository, tmp_path, expected=("a",))
    with pytest.raises(ForeignRunError, match=r"run\.resume"):
        lead(repository, tmp_path, expected=("a",), run=replace(RUN, run_id="other"))
    with pytest.raises(ForeignRunError, match="other settings"):
        lead(repository, tmp_path, run=replace(RUN, config_hash="d" * 64), resume=True)


def test_a_covering_delta_that_was_changed_since_is_an_error_that_names_it(tmp_path):
    repository = MemoryRepository()
    send(repository, delta("a", 10))

    def die() -> None:
        raise KeyboardInterrupt

    options = {"expected": ("a",), "outer_state_every": 5}
    with pytest.raises(KeyboardInterrupt):
        lead(repository, tmp_path, port=InlinePort(die), **options)
    path = deltas_listed(repository)[0]
    send(repository, Addition(path=path, source=delta("a", 10, nonce="other").source))
    with pytest.raises(Exception, match="is not the delta that was merged"):
        lead(repository, tmp_path, **options)
    repository.commit("gone", deletions=[path])
    with pytest.raises(Exception, match="is gone"):
        lead(repository, tmp_path, **options)


# -- disk ------------------------------------------------------------------------------------------


class FullDisk(MemoryRepository):
    full = False

    def fetch(self, path: str, **fields: Any) -> str:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device", str(fields["destination"]))
        return super().fetch(path, **fields)


def test_a_full_disk_is_a_clear_error_and_nothing_is_lost(tmp_path):
    repository = FullDisk()
    send(repository, delta("a", 10), claim("a", "done"))
    repository.full = True
    with pytest.raises(TrainingError, match=r"No space left on device.*nothing is lost"):
        lead(repository, tmp_path, expected=("a",))
    repository.full = False
    report = lead(repository, tmp_path, expected=("a",))
    assert merged_of(report) == {"a": "1-10"}


def test_a_disk_that_fills_up_in_the_middle_of_a_merge_leaves_the_global_as_it_was(tmp_path):
    repository = MemoryRepository()
    largest = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_up() -> None:
        send(repository.another(), delta("a", 10))
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, largest[1]))

    try:
        with pytest.raises(TrainingError, match="nothing is lost"):
            lead(repository, tmp_path, port=InlinePort(fill_up), expected=("a",))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, largest)
    assert published(repository).outer_step == 0
    send(repository, claim("a", "done"))
    report = lead(repository, tmp_path, expected=("a",))
    assert merged_of(report) == {"a": "1-10"}
    assert not list(tmp_path.rglob("*.part"))


def test_state_folders_are_for_their_owner_alone(tmp_path):
    repository = MemoryRepository()
    send(repository, delta("a", 10), claim("a", "done"))
    lead(repository, tmp_path, expected=("a",))
    for folder in (tmp_path / "globals", tmp_path / "deltas"):
        assert folder.stat().st_mode & 0o777 == 0o700
