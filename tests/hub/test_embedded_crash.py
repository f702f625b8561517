"""A hub that was killed has lost nothing that it said yes to, and shows nothing half-written."""

import contextlib
import hashlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import HfApi

from ray_diloco.errors import ContentError, HubError, TransientHubError
from ray_diloco.hub.client import HubRepository
from ray_diloco.hub.embedded.journal import Journal, encode, read_journal
from ray_diloco.hub.embedded.server import EmbeddedHub
from ray_diloco.hub.entrance import ensure_repository
from ray_diloco.hub.memory import MemoryRepository
from ray_diloco.hub.repository import Addition
from ray_diloco.hub.secret import Secret
from ray_diloco.protocol.clock import Micros

PROGRAM = "from ray_diloco.hub.embedded.main import main; main()"


@contextlib.contextmanager
def serving(
    folder: Path, *, largest_file: int | None = None
) -> Iterator[tuple["subprocess.Popen[str]", str, Secret]]:
    """A process of `ray-diloco-hub`, its endpoint and token; killed at the end if it still runs.

    ``largest_file``: bytes after which the system lets it write no more to a file.
    """
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({largest_file},) * 2); "
    program = (limit if largest_file else "") + PROGRAM
    arguments = ["--folder", str(folder / "hub"), "--token-file", str(folder / "token")]
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            endpoint = process.stdout.readline().strip().removeprefix("HF_ENDPOINT=")
            assert process.stdout.readline() == f"HF_TOKEN=$(cat {folder / 'token'})\n"
            yield process, endpoint, Secret((folder / "token").read_text().strip())
        finally:
            if process.poll() is None:
                process.kill()


def test_sigkill_loses_no_commit_and_shows_no_half_of_one(tmp_path: Path) -> None:
    landed: list[int] = []
    with serving(tmp_path) as (process, endpoint, token):
        repo_id = ensure_repository(endpoint=endpoint, token=token, repo_id="local/run")
        repository = HubRepository(endpoint=endpoint, token=token, repo_id=repo_id)
        enough = threading.Event()

        def write() -> None:
            with contextlib.suppress(HubError):
                for number in range(10_000):
                    repository.commit(f"{number}", additions=additions(number))
                    landed.append(number)
                    if number == 20:
                        enough.set()

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        assert enough.wait(30)
        process.kill()
        writer.join()
    tear(tmp_path / "hub" / "repositories" / "local" / "run.journal")
    with serving(tmp_path) as (process, endpoint, again):
        assert again == token
        repository = HubRepository(endpoint=endpoint, token=token, repo_id=repo_id)
        commit = repository.head_commit()
        entries = repository.list_files("", commit=commit)
        shown = {int(entry.path.split("/")[0]) for entry in entries}
        assert set(landed) <= shown <= {*landed, len(landed)}
        assert len(entries) == 2 * len(shown)
        for entry in entries[-4:]:
            repository.fetch(
                entry.path,
                commit=commit,
                destination=tmp_path / "x",
                size=entry.size,
                sha256=entry.sha256,
            )
        assert repository.commit("after", additions=additions(-1)) != commit
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def additions(number: int) -> list[Addition]:
    content = hashlib.sha256(b"%d" % number).digest() * 100
    return [
        Addition(path=f"{number}/x.safetensors", source=content),
        Addition(path=f"{number}/x.json", source=content[:10]),
    ]


def tear(journal: Path) -> None:
    """What a write leaves that the machine did not finish."""
    with journal.open("ab") as file:
        file.write(encode({"kind": "commit", "branch": "main"})[:17])


def test_a_folder_is_served_by_one_hub_at_a_time(tmp_path: Path) -> None:
    with EmbeddedHub(tmp_path), pytest.raises(OSError, match="another hub"):
        EmbeddedHub(tmp_path)
    with EmbeddedHub(tmp_path):
        pass


def test_equal_histories_have_equal_commits_in_memory_and_on_the_hub(tmp_path: Path) -> None:
    with EmbeddedHub(tmp_path, clock=StillClock()) as hub:
        repo_id = ensure_repository(endpoint=hub.endpoint, token=hub.token, repo_id="local/run")
        served = HubRepository(endpoint=hub.endpoint, token=hub.token, repo_id=repo_id)
        kept = MemoryRepository(clock=StillClock())
        for repository in (served, kept):
            repository.commit("one", additions=additions(1))
            repository.commit("two", additions=additions(2), deletions=["1/x.json"])
        assert served.head_commit() == kept.head_commit()
        assert served.squash("squash") == kept.squash("squash")


class StillClock:
    def now(self) -> Micros:
        return Micros(0)

    def utc(self) -> str:
        return "2030-01-01T00:00:00.000000+00:00"


def test_a_torn_tail_is_cut_and_the_journal_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "x.journal"
    journal = Journal(path)
    journal.append({"kind": "one"})
    journal.close()
    for torn in (b"0", encode({"kind": "two"})[:-1], b"00000000 {}\n"):
        with path.open("ab") as file:
            file.write(torn)
        assert read_journal(path) == [{"kind": "one"}]
    journal = Journal(path)
    journal.append({"kind": "two"})
    journal.close()
    assert [record["kind"] for record in read_journal(path)] == ["one", "two"]


def test_a_journal_damaged_in_the_middle_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.journal"
    content = b"00000000 {}\n" + encode({"kind": "two"})
    path.write_bytes(content)
    with pytest.raises(ContentError, match="damaged"):
        read_journal(path)
    assert path.read_bytes() == content


def test_a_squash_leaves_a_journal_that_is_short_and_says_the_same(tmp_path: Path) -> None:
    journal = tmp_path / "repositories" / "local" / "run.journal"
    with EmbeddedHub(tmp_path) as hub:
        repo_id = ensure_repository(endpoint=hub.endpoint, token=hub.token, repo_id="local/run")
        repository = HubRepository(endpoint=hub.endpoint, token=hub.token, repo_id=repo_id)
        for number in range(30):
            repository.commit(f"{number}", additions=additions(number % 3))
            repository.commit("gone", deletions=[f"{number % 3}/x.json"])
        before = journal.stat().st_size
        squashed = repository.squash("squash")
        assert journal.stat().st_size < before / 5
        tip = repository.commit("after", additions=additions(7))
        listed = repository.list_files("", commit=tip)
    with EmbeddedHub(tmp_path) as hub:
        repository = HubRepository(endpoint=hub.endpoint, token=hub.token, repo_id=repo_id)
        assert repository.head_commit() == tip
        assert repository.list_files("", commit=tip) == listed
        assert len(repository.list_files("", commit=squashed)) == 3


def test_a_hub_without_room_says_so_keeps_what_it_has_and_goes_on_with_room(
    tmp_path: Path,
) -> None:
    large = Addition(path="big.safetensors", source=b"0" * 200_000)
    with serving(tmp_path, largest_file=50_000) as (_, endpoint, token):
        repo_id = ensure_repository(endpoint=endpoint, token=token, repo_id="local/run")
        repository = HubRepository(endpoint=endpoint, token=token, repo_id=repo_id)
        kept = repository.commit("one", additions=additions(1))
        with pytest.raises(TransientHubError, match=r"507 .*disk"):
            repository.stage([large])
        wide = [Addition(path=f"{n:0>500}/x.json", source=b"%d" % n) for n in range(100)]
        with pytest.raises(TransientHubError, match=r"507 .*disk"):
            repository.commit("a journal without room", additions=wide)
        assert repository.head_commit() == kept
        tip = repository.commit("two", additions=additions(2))
    with serving(tmp_path) as (_, endpoint, token):
        repository = HubRepository(endpoint=endpoint, token=token, repo_id=repo_id)
        assert repository.head_commit() == tip
        repository.commit("three", additions=[large, *wide])


def test_history_branches_tags_and_privacy_are_there_after_a_restart(tmp_path: Path) -> None:
    with EmbeddedHub(tmp_path) as hub:
        repo_id = ensure_repository(endpoint=hub.endpoint, token=hub.token, repo_id="local/run")
        repository = HubRepository(endpoint=hub.endpoint, token=hub.token, repo_id=repo_id)
        first = repository.commit("one", additions=additions(1))
        api = HfApi(endpoint=hub.endpoint, token=hub.token.reveal())
        for name in ("kept", "gone"):
            api.create_branch(repo_id, branch=f"side-{name}", revision=first)
            api.create_tag(repo_id, tag=f"v-{name}", revision=first)
            api.create_repo(f"local/{name}", private=name == "gone")
        api.delete_branch(repo_id, branch="side-gone")
        api.delete_tag(repo_id, tag="v-gone")
        api.delete_repo("local/gone")
        repository.squash("squash")
        commit = repository.commit("two", additions=additions(2), deletions=["1/x.json"])
        for name in ("side-late", "side-gone"):
            api.create_branch(repo_id, branch=name)
        api.create_tag(repo_id, tag="v-late")
        api.delete_branch(repo_id, branch="side-gone")
    with EmbeddedHub(tmp_path) as hub:
        repository = HubRepository(endpoint=hub.endpoint, token=hub.token, repo_id=repo_id)
        assert repository.head_commit() == commit
        assert [entry.path for entry in repository.list_files("", commit=commit)] == [
            "1/x.safetensors",
            "2/x.json",
            "2/x.safetensors",
        ]
        api = HfApi(endpoint=hub.endpoint, token=hub.token.reveal())
        refs = api.list_repo_refs(repo_id)
        named = {ref.name: ref.target_commit for ref in (*refs.branches, *refs.tags)}
        late = {"main": commit, "side-late": commit, "v-late": commit}
        assert named == {**late, "side-kept": first, "v-kept": first}
        assert [each.title for each in api.list_repo_commits(repo_id)] == ["two", "squash"]
        assert len(repository.list_files("", commit=first)) == 2
        assert api.model_info(repo_id).private is True
        assert api.model_info("local/kept").private is False
        assert not api.repo_exists("local/gone")
