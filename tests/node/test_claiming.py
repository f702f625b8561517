"""One name, one node."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lane_driver import HandClock
from node_scene import publish, row, scripted_weights

from ray_diloco.errors import NodeInUseError, TransientHubError
from ray_diloco.hub.memory import MemoryRepository
from ray_diloco.hub.repository import Addition
from ray_diloco.node.claiming import LOOKS, Claim, Claimed
from ray_diloco.protocol.node_card import NodeCard
from ray_diloco.protocol.paths import delta_path, node_card_path

PATH = node_card_path("n0")


def put_claim(repository: MemoryRepository, nonce: str = "other", **fields: Any) -> None:
    """A claim that another process left."""
    known = {"started": "2026-01-01T00:00:00Z", "state": "active", "run_id": "run-1"}
    card = NodeCard(nonce=nonce, **(known | fields))
    repository.commit("claim", additions=[Addition(path=PATH, source=card.to_json())])


def put_delta(repository: MemoryRepository, number: int) -> None:
    path = delta_path("n0", number)
    repository.commit("delta", additions=[Addition(path=path, source=b"%d" % number)])


def claim_of(repository: MemoryRepository) -> NodeCard:
    data = repository.read(PATH, commit=repository.head_commit(), limit=1 << 16)
    return NodeCard.from_json(data, path=PATH)


def take(
    repository: MemoryRepository,
    folder: Path,
    *,
    nonce: str = "mine",
    kept: str | None = None,
    takeover: bool = False,
    clock: HandClock | None = None,
) -> Claimed:
    clock = clock or HandClock()
    folder.mkdir(exist_ok=True)
    claim = Claim(
        node_id="n0",
        repository=repository,
        retry=clock.retry(),
        clock=clock,
        state_dir=folder,
        node_timeout=60.0,
        gap=10,
    )
    return clock.finish(claim.take(nonce, run_id="run-1", kept=kept, takeover=takeover))


@pytest.fixture
def repository() -> MemoryRepository:
    return MemoryRepository()


def test_a_free_name_is_taken_at_once(repository, tmp_path):
    clock = HandClock()
    claimed = take(repository, tmp_path, clock=clock)
    assert (claimed.nonce, claimed.used, claimed.continues) == ("mine", 0, False)
    assert claim_of(repository).nonce == "mine"
    assert clock.sleeps == 0


def test_a_name_whose_owner_said_goodbye_is_free(repository, tmp_path):
    put_claim(repository, state="done", last_local_step=40)
    clock = HandClock()
    assert take(repository, tmp_path, clock=clock).used == 40
    assert clock.sleeps == 0


def test_numbers_go_on_above_all_that_were_ever_used(repository, tmp_path):
    put_claim(repository, state="done", last_local_step=40)
    put_delta(repository, 55)
    assert take(repository, tmp_path / "a").used == 55
    put_claim(repository, state="done")
    publish(repository, 1, scripted_weights(1), nodes=row("older", 60))
    assert take(repository, tmp_path / "b").used == 60


def moves(repository: MemoryRepository) -> list[Callable[[], None]]:
    """Signs of life, each by itself."""
    return [
        lambda: put_delta(repository, 20),
        lambda: put_claim(repository, nonce="third"),
        lambda: publish(repository, 1, scripted_weights(1), nodes=row("other", 10)) and None,
    ]


@pytest.mark.parametrize("sign", range(3))
def test_a_name_that_moves_while_it_is_watched_is_in_use(sign, repository, tmp_path):
    put_claim(repository)
    clock = HandClock(meanwhile=moves(repository)[sign])
    with pytest.raises(NodeInUseError, match=r"'n0' is in use since 2026.*run\.takeover=true"):
        take(repository, tmp_path, clock=clock)
    assert clock.sleeps == 1
    assert claim_of(repository).nonce != "mine"


def test_a_name_that_is_silent_for_the_node_timeout_is_taken(repository, tmp_path):
    put_claim(repository, last_local_step=20)
    clock = HandClock()
    claimed = take(repository, tmp_path, clock=clock)
    assert clock.now() == 60_000_000
    assert clock.sleeps == LOOKS
    assert claimed.forerunners == {"other"}


def test_the_last_commit_of_a_silent_owner_may_still_land_under_a_number_of_its_own(
    repository, tmp_path
):
    put_claim(repository, last_local_step=20)
    assert take(repository, tmp_path).used == 20 + 10


def claim_under(repository: MemoryRepository, folder: Path, clock: HandClock) -> Claim:
    return Claim(
        node_id="n0", repository=repository, retry=clock.retry(), clock=clock, state_dir=folder
    )


def test_whoever_waits_for_its_name_is_told_who_holds_it(repository, tmp_path):
    put_claim(repository, last_local_step=20)
    clock, told = HandClock(meanwhile=lambda: put_delta(repository, 30)), []
    lane = claim_under(repository, tmp_path, clock).take(
        "mine", run_id="run-1", kept=None, takeover=False, watching=told.append
    )
    with pytest.raises(NodeInUseError, match=r"since 2026.* nonce other, at local"):
        clock.finish(lane)
    assert [each.nonce for each in told] == ["other"]


@pytest.mark.parametrize("word", ["beat", "give_back"])
def test_whoever_was_taken_over_leaves_the_claim_of_its_successor_alone(word, repository, tmp_path):
    clock = HandClock()
    claim = claim_under(repository, tmp_path, clock)
    clock.finish(claim.take("mine", run_id="run-1", kept=None, takeover=False))
    put_claim(repository, nonce="successor")
    number = {"number": 1} if word == "beat" else {}
    lane = getattr(claim, word)("mine", run_id="run-1", last_local_step=5, **number)
    with pytest.raises(NodeInUseError, match="nonce successor"):
        clock.finish(lane)
    assert claim_of(repository).nonce == "successor"


def test_a_goodbye_ends_the_watch(repository, tmp_path):
    put_claim(repository)
    clock = HandClock(meanwhile=lambda: put_claim(repository, state="done"))
    assert take(repository, tmp_path, clock=clock).nonce == "mine"
    assert clock.sleeps == 1


def test_a_watch_that_is_interrupted_leaves_the_name_alone(repository, tmp_path):
    put_claim(repository)
    clock = HandClock()
    clock.interrupts = True
    with pytest.raises(NodeInUseError):
        take(repository, tmp_path, clock=clock)


def test_takeover_does_not_watch(repository, tmp_path):
    put_claim(repository)
    clock = HandClock()
    assert take(repository, tmp_path, takeover=True, clock=clock).nonce == "mine"
    assert clock.sleeps == 0


def test_a_claim_left_from_the_same_state_folder_is_not_watched(repository, tmp_path):
    take(repository, tmp_path, nonce="before")
    clock = HandClock()
    assert take(repository, tmp_path, nonce="after", clock=clock).nonce == "after"
    assert clock.sleeps == 0


def test_the_nonce_of_a_checkpoint_goes_on(repository, tmp_path):
    take(repository, tmp_path, nonce="before")
    put_delta(repository, 30)
    publish(repository, 1, scripted_weights(1), nodes=row("before", 20))
    claimed = take(repository, tmp_path / "moved", kept="before")
    assert (claimed.nonce, claimed.continues, claimed.own) == ("before", True, 30)


def test_the_nonce_of_a_checkpoint_does_not_go_on_after_another_had_the_name(repository, tmp_path):
    put_claim(repository, state="done")
    claimed = take(repository, tmp_path, kept="before")
    assert (claimed.nonce, claimed.continues) == ("mine", False)


def test_a_nonce_is_never_used_twice(repository, tmp_path):
    put_claim(repository, nonce="mine", state="done", last_local_step=7)
    claimed = take(repository, tmp_path)
    assert claimed.nonce == "mine-7"
    assert claim_of(repository).nonce == "mine-7"


@pytest.mark.parametrize("nonce", ["other", "mine"])
def test_who_reads_back_another_claim_stops(nonce, repository, tmp_path):
    """Even one under the same nonce: a copy of our state folder."""

    class Contested(MemoryRepository):
        def commit(self, message: str, **fields: Any) -> str:
            super().commit(message, **fields)
            return put_claim(repository, nonce=nonce) or ""

    contested = Contested(store=repository._store)
    with pytest.raises(NodeInUseError):
        take(contested, tmp_path)


@pytest.mark.parametrize("lands", [False, True])
def test_a_claim_whose_answer_was_lost_is_sent_again(lands, repository, tmp_path):
    answers = iter([False, True])

    class Deaf(MemoryRepository):
        def commit(self, message: str, **fields: Any) -> str:
            heard = next(answers)
            commit = super().commit(message, **fields) if heard or lands else ""
            if not heard:
                raise TransientHubError("503", "unknown")
            return commit

    assert take(Deaf(store=repository._store), tmp_path).nonce == "mine"
    assert claim_of(repository).nonce == "mine"


def test_a_claim_that_cannot_be_read_is_no_claim(repository, tmp_path):
    repository.commit("claim", additions=[Addition(path=PATH, source=b"[]")])
    assert take(repository, tmp_path).nonce == "mine"


def test_metadata_that_cannot_be_trusted_says_nothing_of_the_name(repository, tmp_path):
    publish(repository, 1, scripted_weights(1))
    bad = Addition(path="global/step_count.json", source=b"not JSON")
    repository.commit("bad", additions=[bad])
    assert take(repository, tmp_path).used == 0


def test_a_nonce_that_a_seed_draws_again_is_never_the_same_again(repository, tmp_path):
    had: list[str] = []
    for number in range(3):
        claimed = take(repository, tmp_path / "state")
        had.append(claimed.nonce)
        put_claim(repository, claimed.nonce, state="done", last_local_step=12 + 4 * number)
    assert had == ["mine", "mine-12", "mine-16"]
