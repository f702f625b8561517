"""The client against a hub that is as unkind as a real one."""

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiohttp import web

from ray_diloco.errors import PermanentHubError, QuotaExceeded, RevisionMissing, TransientHubError
from ray_diloco.hub.client import HubRepository
from ray_diloco.hub.embedded.server import EmbeddedHub
from ray_diloco.hub.embedded.strict import Fault, FaultKind, Plan, Rules, no_faults
from ray_diloco.hub.entrance import ensure_repository
from ray_diloco.hub.repository import Addition
from ray_diloco.hub.transport import Timeouts

LARGE = bytes(range(256)) * 64
SHA256 = hashlib.sha256(LARGE).hexdigest()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[EmbeddedHub]:
    with EmbeddedHub(tmp_path / "hub") as hub:
        yield hub


def repository_at(hub: EmbeddedHub, timeouts: Timeouts | None = None) -> HubRepository:
    repo_id = ensure_repository(endpoint=hub.endpoint, token=hub.token, repo_id="local/run")
    return HubRepository(endpoint=hub.endpoint, token=hub.token, repo_id=repo_id, timeouts=timeouts)


def once(route: str, fault: Fault) -> Plan:
    """The first request to a route suffers the fault, later ones do not."""
    left = [fault]

    def plan(asked: str, _request: web.Request) -> Fault | None:
        return left.pop() if asked == route and left else None

    return plan


def small(content: bytes) -> Addition:
    return Addition(path="x.json", source=content)


def outcome_of(call: Callable[[], object]) -> str:
    with pytest.raises(TransientHubError) as caught:
        call()
    return caught.value.outcome


@pytest.mark.parametrize("status", [500, 502, 503, 504, 429])
def test_the_client_itself_never_waits_and_tries_again(hub: EmbeddedHub, status: int) -> None:
    repository = repository_at(hub)
    commit = repository.commit("one", additions=[small(b"1")])
    for route, call in (
        ("batch", lambda: repository.stage([Addition(path="y.safetensors", source=b"1")])),
        ("tree", lambda: repository.list_files("", commit=commit)),
        ("resolve", lambda: repository.head("x.json")),
    ):
        fault = Fault(kind=FaultKind.refuse, status=status, retry_after=100)
        hub.plan_faults(once(route, fault))
        before = repository.traffic.requests
        begun = time.monotonic()
        with pytest.raises((TransientHubError, QuotaExceeded)):
            call()
        assert repository.traffic.requests - before == 1
        assert time.monotonic() - begun < 0.9


def test_a_409_is_a_refusal_and_changes_nothing(hub: EmbeddedHub) -> None:
    repository = repository_at(hub)
    before = repository.head_commit()
    hub.plan_faults(once("commit", Fault(kind=FaultKind.refuse, status=409)))
    assert outcome_of(lambda: repository.commit("one", additions=[small(b"1")])) == "refused"
    assert repository.head_commit() == before


@pytest.mark.parametrize("kind", [FaultKind.landed_500, FaultKind.lost])
def test_a_commit_that_landed_without_a_good_answer_is_in_doubt(
    hub: EmbeddedHub, kind: FaultKind
) -> None:
    repository = repository_at(hub)
    before = repository.head_commit()
    hub.plan_faults(once("commit", Fault(kind=kind)))
    assert outcome_of(lambda: repository.commit("one", additions=[small(b"1")])) == "unknown"
    landed = repository.head_commit()
    assert landed != before
    assert repository.commit("again", additions=[small(b"1")]) == landed


def test_a_commit_that_was_reset_before_it_landed_is_in_doubt(hub: EmbeddedHub) -> None:
    repository = repository_at(hub)
    before = repository.head_commit()
    hub.plan_faults(once("commit", Fault(kind=FaultKind.reset)))
    assert outcome_of(lambda: repository.commit("one", additions=[small(b"1")])) == "unknown"
    assert repository.head_commit() == before


def test_an_upload_that_broke_leaves_no_doubt_and_can_be_done_again(hub: EmbeddedHub) -> None:
    repository = repository_at(hub)
    addition = Addition(path="x.safetensors", source=LARGE)
    hub.plan_faults(once("upload", Fault(kind=FaultKind.reset)))
    assert outcome_of(lambda: repository.commit("one", additions=[addition])) == "refused"
    commit = repository.commit("one", additions=[addition])
    assert repository.entry("x.safetensors", commit=commit) is not None


@pytest.mark.parametrize("kind", [FaultKind.truncate, FaultKind.flip])
def test_a_damaged_file_is_noticed_and_fetched_again(
    hub: EmbeddedHub, tmp_path: Path, kind: FaultKind
) -> None:
    repository = repository_at(hub)
    commit = repository.commit("one", additions=[Addition(path="x.safetensors", source=LARGE)])
    hub.plan_faults(once("resolve", Fault(kind=kind)))

    def fetch() -> str:
        return repository.fetch(
            "x.safetensors", commit=commit, destination=tmp_path / "x", sha256=SHA256
        )

    outcome_of(fetch)
    assert not (tmp_path / "x").exists()
    assert fetch() == SHA256


@pytest.mark.parametrize("kind", [FaultKind.truncate, FaultKind.flip])
def test_a_damaged_small_file_is_noticed_too(hub: EmbeddedHub, kind: FaultKind) -> None:
    repository = repository_at(hub)
    content = b'{"outer_step": 17}'
    commit = repository.commit("one", additions=[Addition(path="x.json", source=content)])
    hub.plan_faults(once("resolve", Fault(kind=kind)))
    outcome_of(lambda: repository.read("x.json", commit=commit, limit=100))
    assert repository.read("x.json", commit=commit, limit=100) == content


def test_a_silent_hub_costs_no_more_than_the_read_timeout(hub: EmbeddedHub) -> None:
    repository = repository_at(hub, Timeouts(read=0.2))
    for route, call in (
        ("info", repository.head_commit),
        ("tree", lambda: repository.list_files("", commit="main")),
        ("commit", lambda: repository.commit("one", additions=[small(b"1")])),
    ):
        hub.plan_faults(once(route, Fault(kind=FaultKind.stall, seconds=10)))
        begun = time.monotonic()
        outcome_of(call)
        assert time.monotonic() - begun < 8


def test_a_hub_that_talks_for_ever_costs_no_more_than_the_total_timeout(
    hub: EmbeddedHub,
) -> None:
    files = [Addition(path=f"{number:04}.json", source=b"1") for number in range(1500)]
    commit = repository_at(hub).commit("many", additions=files)
    repository = repository_at(hub, Timeouts(read=5, total=0.3))

    gave_up = threading.Event()

    def slow(_route: str, _request: web.Request) -> Fault | None:
        gave_up.wait(0.25)
        return None

    hub.plan_faults(slow)
    outcome_of(lambda: repository.list_files("", commit=commit))
    gave_up.set()


def test_a_hub_that_is_not_there_is_a_passing_fault(hub: EmbeddedHub) -> None:
    repository = repository_at(hub)
    repository.head_commit()
    hub.close()
    assert outcome_of(lambda: repository.commit("one", additions=[small(b"1")])) == "refused"


def test_the_quota_of_an_hour_is_refused_with_its_text_and_when_to_come_back(
    tmp_path: Path,
) -> None:
    with EmbeddedHub(tmp_path, rules=Rules(commits_per_hour=2)) as hub:
        repository = repository_at(hub)
        for number in range(2):
            repository.commit("m", additions=[small(b"%d" % number)])
        with pytest.raises(QuotaExceeded, match="per hour") as caught:
            repository.commit("m", additions=[small(b"3")])
    assert caught.value.retry_after_us is not None
    assert 3500 * 10**6 < caught.value.retry_after_us <= 3600 * 10**6


def test_a_commit_during_another_one_is_refused_by_a_strict_hub(tmp_path: Path) -> None:
    with EmbeddedHub(tmp_path, rules=Rules(one_commit_at_a_time=True)) as hub:
        repository = repository_at(hub)
        refused: list[TransientHubError] = []

        def commit(name: str) -> None:
            for number in range(200):
                if refused:
                    return
                try:
                    addition = Addition(path=f"{name}.json", source=b"%d" % number)
                    repository.commit("m", additions=[addition])
                except TransientHubError as error:
                    refused.append(error)

        writers = [threading.Thread(target=commit, args=(name,), daemon=True) for name in "abcd"]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
    assert refused
    assert all(error.outcome == "refused" for error in refused)


def test_a_lagging_lookup_shows_the_commit_before(hub: EmbeddedHub) -> None:
    repository = repository_at(hub)
    first = repository.commit("one", additions=[small(b"1")])
    second = repository.commit("two", additions=[small(b"2")])
    hub.plan_faults(once("resolve", Fault(kind=FaultKind.lag)))
    seen = [repository.head("x.json"), repository.head("x.json")]
    assert [head.commit if head else None for head in seen] == [first, second]


def test_a_blob_that_was_dropped_before_its_commit_is_sent_again(tmp_path: Path) -> None:
    with EmbeddedHub(tmp_path, upload_seconds=0) as hub:
        repository = repository_at(hub)
        hub.plan_faults(no_faults)
        with pytest.raises(TransientHubError, match="expired"):
            repository.stage([Addition(path="x.safetensors", source=LARGE)])


def test_a_squash_drops_old_blobs_but_none_that_may_be_committed_yet(tmp_path: Path) -> None:
    with EmbeddedHub(tmp_path) as hub:
        repository = repository_at(hub)
        repository.commit("one", additions=[Addition(path="x.safetensors", source=LARGE)])
        staged = Addition(path="y.safetensors", source=LARGE + b"1")
        repository.stage([staged])
        old = repository.commit("two", deletions=["x.safetensors"])
        repository.squash("squash")
        with pytest.raises(RevisionMissing):
            repository.list_files("", commit=old)
        before = repository.traffic.bytes_up
        repository.commit("three", additions=[staged])
        assert repository.traffic.bytes_up == before


def test_an_unsafe_name_of_a_repository_is_refused(hub: EmbeddedHub) -> None:
    for name in ("a/..", "local/.hidden", "a/b/c"):
        with pytest.raises(PermanentHubError):
            ensure_repository(endpoint=hub.endpoint, token=hub.token, repo_id=name)


def test_a_poll_is_one_request_a_delta_three_and_a_publication_six(
    hub: EmbeddedHub, tmp_path: Path
) -> None:
    repository = repository_at(hub)
    repository.commit("one", additions=[small(b"1")])

    def cost(call: Callable[[], object]) -> int:
        before = repository.traffic.requests
        call()
        return repository.traffic.requests - before

    def large(path: str) -> Addition:
        return Addition(path=path, source=path.encode())

    delta = "nodes/a/delta_1.safetensors"
    assert cost(lambda: repository.head("x.json")) == 1
    assert cost(lambda: repository.commit("delta", additions=[large(delta)])) == 3

    def publish() -> None:
        parent = repository.head_commit()
        repository.list_files("nodes", commit=parent)
        additions = [large("global/latest.safetensors"), large("global/outer_state.safetensors")]
        repository.stage(additions)
        repository.commit(
            "publish", additions=[*additions, small(b"2")], deletions=[delta], parent=parent
        )

    assert cost(publish) == 6
