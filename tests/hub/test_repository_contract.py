"""One contract for every repository: in memory, on the embedded hub, on huggingface.co."""

import hashlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_diloco.errors import (
    ContentError,
    EntryMissing,
    ParentConflict,
    RevisionMissing,
    TransientHubError,
)
from ray_diloco.hub.client import HubRepository
from ray_diloco.hub.embedded.server import EmbeddedHub
from ray_diloco.hub.entrance import delete_repository, ensure_repository
from ray_diloco.hub.memory import MemoryRepository
from ray_diloco.hub.repository import Addition, Repository
from ray_diloco.hub.secret import Secret
from ray_diloco.hub.settings import HUGGINGFACE_ENDPOINT

LARGE = bytes(range(256)) * 8
LARGE_SHA256 = hashlib.sha256(LARGE).hexdigest()


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedHub]:
    with EmbeddedHub(tmp_path_factory.mktemp("hub")) as hub:
        yield hub


@pytest.fixture(
    params=[
        "memory",
        "embedded",
        pytest.param("huggingface", marks=pytest.mark.network),
    ]
)
def repository(request: pytest.FixtureRequest) -> Iterator[Repository]:
    match request.param:
        case "memory":
            yield MemoryRepository()
        case "embedded":
            hub: EmbeddedHub = request.getfixturevalue("hub")
            yield from _a_new_one(hub.endpoint, hub.token)
        case _:
            yield from _a_new_one(HUGGINGFACE_ENDPOINT, Secret(os.environ["HF_TOKEN"]))


def _a_new_one(endpoint: str, token: Secret) -> Iterator[Repository]:
    name = f"ray-diloco-{uuid.uuid4().hex[:12]}"
    repo_id = ensure_repository(endpoint=endpoint, token=token, repo_id=name)
    yield HubRepository(endpoint=endpoint, token=token, repo_id=repo_id)
    delete_repository(endpoint=endpoint, token=token, repo_id=repo_id)


def large(path: str, content: bytes = LARGE) -> Addition:
    return Addition(path=path, source=content)


def small(path: str, content: bytes = b"{}\n") -> Addition:
    return Addition(path=path, source=content)


def paths(repository: Repository, folder: str, commit: str) -> list[str]:
    return [entry.path for entry in repository.list_files(folder, commit=commit)]


def test_a_commit_moves_the_branch_and_shows_its_files(repository: Repository) -> None:
    commit = repository.commit(
        "add", additions=[large("nodes/a/delta_1.safetensors"), small("nodes/a/node.json")]
    )
    assert repository.head_commit() == commit
    assert paths(repository, "nodes", commit) == [
        "nodes/a/delta_1.safetensors",
        "nodes/a/node.json",
    ]
    entry = repository.entry("nodes/a/delta_1.safetensors", commit=commit)
    assert entry is not None
    assert (entry.size, entry.sha256) == (len(LARGE), LARGE_SHA256)
    small_entry = repository.entry("nodes/a/node.json", commit=commit)
    assert small_entry is not None
    assert (small_entry.size, small_entry.sha256) == (3, None)


def test_a_folder_or_file_that_is_not_there_is_empty_or_none(repository: Repository) -> None:
    commit = repository.commit("add", additions=[small("nodes/a.json")])
    assert repository.list_files("global", commit=commit) == ()
    assert repository.entry("global/x.json", commit=commit) is None
    assert repository.head("global/x.json") is None
    with pytest.raises(EntryMissing):
        repository.read("global/x.json", commit=commit, limit=10)
    with pytest.raises(EntryMissing):
        repository.last_commit("global/x.json", commit=commit)


def test_an_old_commit_is_read_as_it_was(repository: Repository) -> None:
    first = repository.commit("one", additions=[small("x.json", b"1")])
    second = repository.commit("two", additions=[small("x.json", b"2")])
    assert repository.read("x.json", commit=first, limit=10) == b"1"
    assert repository.read("x.json", commit=second, limit=10) == b"2"


def test_a_small_file_that_is_larger_than_expected_is_refused(repository: Repository) -> None:
    commit = repository.commit("one", additions=[small("x.json", b"12345")])
    with pytest.raises(ContentError, match=r"x\.json"):
        repository.read("x.json", commit=commit, limit=4)


def test_a_fetched_file_is_whole_and_hashed(repository: Repository, tmp_path: Path) -> None:
    commit = repository.commit("one", additions=[large("x.safetensors")])
    destination = tmp_path / "made" / "x"
    found = repository.fetch(
        "x.safetensors",
        commit=commit,
        destination=destination,
        size=len(LARGE),
        sha256=LARGE_SHA256,
    )
    assert found == LARGE_SHA256
    assert destination.read_bytes() == LARGE
    assert list(destination.parent.iterdir()) == [destination]


def test_bytes_that_do_not_match_leave_the_destination_as_it_was(
    repository: Repository, tmp_path: Path
) -> None:
    commit = repository.commit("one", additions=[large("x.safetensors")])
    destination = tmp_path / "x"
    destination.write_bytes(b"before")
    with pytest.raises(TransientHubError):
        repository.fetch("x.safetensors", commit=commit, destination=destination, size=3)
    with pytest.raises(TransientHubError):
        repository.fetch("x.safetensors", commit=commit, destination=destination, sha256="0" * 64)
    assert destination.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [destination]


def test_a_head_tells_commit_etag_and_size(repository: Repository) -> None:
    first = repository.commit("one", additions=[small("x.json", b"1")])
    before = repository.head("x.json")
    assert before is not None
    assert (before.commit, before.size) == (first, 1)
    repository.commit("other", additions=[small("y.json")])
    other = repository.head("x.json")
    assert other is not None
    assert other.etag == before.etag
    repository.commit("two", additions=[small("x.json", b"22")])
    after = repository.head("x.json")
    assert after is not None
    assert after.etag != before.etag


def test_additions_and_deletions_are_one_commit(repository: Repository) -> None:
    first = repository.commit("one", additions=[large("a.safetensors"), small("b.json")])
    second = repository.commit(
        "two", additions=[small("c.json")], deletions=["a.safetensors", "b.json"], parent=first
    )
    assert paths(repository, "", second) == [
        *[path for path in paths(repository, "", first) if path.startswith(".")],
        "c.json",
    ]


def test_deleting_what_is_not_there_is_no_error(repository: Repository) -> None:
    first = repository.commit("one", additions=[small("a.json"), small("b.json")])
    second = repository.commit("two", deletions=["gone.json", "a.json"], parent=first)
    assert "a.json" not in paths(repository, "", second)
    assert "b.json" in paths(repository, "", second)
    assert repository.commit("three", deletions=["gone.json"]) == second


def test_a_commit_on_an_old_parent_is_a_conflict_and_changes_nothing(
    repository: Repository,
) -> None:
    first = repository.commit("one", additions=[small("x.json", b"1")])
    second = repository.commit("two", additions=[small("x.json", b"2")], parent=first)
    with pytest.raises(ParentConflict):
        repository.commit("three", additions=[small("x.json", b"3")], parent=first)
    assert repository.head_commit() == second


def test_staged_blobs_are_committed_later_and_sent_once(
    repository: Repository, tmp_path: Path
) -> None:
    source = tmp_path / "x"
    content = os.urandom(2000)
    source.write_bytes(content)
    sha256 = hashlib.sha256(content).hexdigest()
    addition = Addition(path="x.safetensors", source=source, sha256=sha256)
    repository.stage([addition])
    assert repository.traffic.bytes_up == 2000
    requests = repository.traffic.requests
    commit = repository.commit("one", additions=[addition])
    assert repository.traffic.requests - requests == 1
    assert repository.traffic.bytes_up == 2000
    entry = repository.entry("x.safetensors", commit=commit)
    assert entry is not None
    assert entry.sha256 == sha256


def test_the_last_change_of_a_file_is_found(repository: Repository) -> None:
    changed = repository.commit("one", additions=[small("x.json", b"1")])
    later = repository.commit("two", additions=[small("y.json")])
    assert repository.last_commit("x.json", commit=later) == changed


def test_a_squash_keeps_the_files_and_drops_the_history(repository: Repository) -> None:
    old = repository.commit("one", additions=[large("x.safetensors"), small("y.json", b"1")])
    repository.commit("two", additions=[small("y.json", b"2")])
    squashed = repository.squash("squash")
    assert repository.head_commit() == squashed
    assert repository.read("y.json", commit=squashed, limit=10) == b"2"
    assert repository.last_commit("x.safetensors", commit=squashed) == squashed
    with pytest.raises(RevisionMissing):
        repository.list_files("", commit=old)


def test_what_changes_nothing_is_no_commit(repository: Repository) -> None:
    commit = repository.commit("one", additions=[small("x.json")])
    assert repository.commit("again", additions=[small("x.json")]) == commit
    assert repository.traffic.commits == 1


def test_traffic_counts_payload_and_commits(repository: Repository, tmp_path: Path) -> None:
    content = os.urandom(2000)
    commit = repository.commit(
        "one", additions=[large("x.safetensors", content), small("y.json", b"1")]
    )
    repository.fetch("x.safetensors", commit=commit, destination=tmp_path / "x")
    repository.read("y.json", commit=commit, limit=10)
    traffic = repository.traffic
    assert (traffic.bytes_up, traffic.bytes_down, traffic.commits) == (
        2001,
        2001,
        1,
    )
