import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_diloco.errors import GlobalError
from ray_diloco.protocol.delta_card import DeltaCard
from ray_diloco.protocol.ledger import REASON_LENGTH, REASONS_KEPT, Ledger
from ray_diloco.protocol.paths import delta_path
from ray_diloco.protocol.ranges import NO_STEPS, StepRanges


def card_of(
    step: int, *, node_id: str = "n1", nonce: str | None = "abc", covers: str = ""
) -> DeltaCard:
    return DeltaCard(
        node_id=node_id,
        local_step=step,
        base_outer_step=0,
        nonce=nonce,
        covers=StepRanges.parse(covers) if covers else None,
        tokens=None if nonce is None else 100,
    )


def merged(ledger: Ledger, card: DeltaCard, *, blob: str = "b1", outer_step: int = 1) -> Ledger:
    path = delta_path(card.node_id, card.local_step)
    return ledger.merged(card, path=path, blob_id=blob, outer_step=outer_step)


def has(ledger: Ledger, card: DeltaCard, *, blob: str = "b1") -> bool:
    path = delta_path(card.node_id, card.local_step)
    return ledger.has(card, path=path, blob_id=blob)


def rejected(
    ledger: Ledger,
    step: int,
    *,
    nonce: str | None = "abc",
    covers: str = "",
    reason: str = "not finite",
    blob: str = "b1",
) -> Ledger:
    return ledger.rejected(
        "n1",
        nonce,
        step,
        covers=StepRanges.parse(covers),
        reason=reason,
        path=delta_path("n1", step),
        blob_id=blob,
        outer_step=2,
    )


# -- merged ----------------------------------------------------------------------------------------


def test_the_mark_of_a_nonce_covers_every_earlier_step_whatever_the_blob():
    ledger = merged(Ledger(), card_of(20))
    assert has(ledger, card_of(20, covers="1-20"), blob="another")
    assert has(ledger, card_of(10))
    assert not has(ledger, card_of(30))


def test_marks_are_kept_per_node_and_nonce():
    ledger = merged(Ledger(), card_of(20))
    assert not has(ledger, card_of(10, node_id="n2"))
    assert not has(ledger, card_of(10, nonce="later"))


def test_a_peer_is_known_by_path_and_blob_so_that_it_may_restart_at_any_step():
    ledger = merged(Ledger(), card_of(20, nonce=None), blob="first")
    assert has(ledger, card_of(20, nonce=None), blob="first")
    assert not has(ledger, card_of(20, nonce=None), blob="rewritten")
    assert not has(ledger, card_of(10, nonce=None), blob="first")


def test_a_nonce_leaves_no_blob_behind():
    assert merged(Ledger(), card_of(20)).peer_blobs == frozenset()


def test_steps_tokens_and_deltas_add_up():
    ledger = merged(merged(Ledger(), card_of(20, covers="1-20")), card_of(40, covers="21-40"))
    account = ledger.account("n1", "abc")
    assert account.merged == StepRanges.of(1, 40)
    assert (account.tokens, account.deltas, account.last_local_step) == (200, 2, 40)
    assert merged(ledger, card_of(5, node_id="n2")).tokens_total == 300


def test_a_change_leaves_the_old_ledger_as_it_was():
    before = Ledger()
    merged(before, card_of(20))
    rejected(before, 20)
    before.done("n1", "abc", outer_step=1)
    assert before == Ledger()


nonces = st.sampled_from(["a", "b", None])
arrivals = st.lists(
    st.tuples(st.sampled_from(["n1", "n2"]), nonces, st.integers(1, 30), st.sampled_from("xy"))
)


@given(arrivals)
def test_what_was_merged_is_had_for_ever(history: list[tuple[str, str | None, int, str]]):
    ledger = Ledger()
    seen: list[tuple[DeltaCard, str]] = []
    for node_id, nonce, step, blob in history:
        card = card_of(step, node_id=node_id, nonce=nonce)
        ledger = merged(ledger, card, blob=blob)
        seen.append((card, blob))
        assert all(has(ledger, c, blob=b) for c, b in seen)
    back = Ledger.from_json(ledger.to_json(), rows=ledger.rows)
    assert back == ledger
    assert back.to_json() == ledger.to_json()


# -- rows ------------------------------------------------------------------------------------------


def test_the_row_tells_the_node_what_the_global_contains():
    row = merged(Ledger(), card_of(20), outer_step=3).rows["n1"]
    assert (row.nonce, row.last_local_step, row.seen_outer_step) == ("abc", 20, 3)
    assert (row.tokens, row.rejected, row.done) == (100, (), False)


def test_a_node_that_started_again_takes_over_its_row():
    ledger = rejected(merged(Ledger(), card_of(20)), 30)
    row = merged(ledger, card_of(40, nonce="later")).rows["n1"]
    assert (row.nonce, row.last_local_step, row.rejected) == ("later", 40, ())


def test_a_late_delta_of_an_older_nonce_does_not_take_the_row_back():
    ledger = merged(merged(Ledger(), card_of(20)), card_of(60, nonce="later"))
    late = merged(ledger, card_of(40))
    assert late.rows == ledger.rows
    assert has(late, card_of(40))
    late_and_bad = rejected(ledger, 40, reason="not finite")
    assert late_and_bad.rows == ledger.rows
    assert has(late_and_bad, card_of(40))


def test_a_done_node_stays_done_until_another_nonce_comes():
    ledger = merged(Ledger(), card_of(20)).done("n1", "abc", outer_step=2)
    assert ledger.rows["n1"].done
    assert ledger.rows["n1"].last_local_step == 20
    assert merged(ledger, card_of(40)).rows["n1"].done
    assert not merged(ledger, card_of(40, nonce="later")).rows["n1"].done


def test_a_node_may_be_done_without_a_single_delta():
    ledger = Ledger().done("n1", "abc", outer_step=0)
    assert ledger.rows["n1"].done
    assert not has(ledger, card_of(1))


# -- rejected --------------------------------------------------------------------------------------


def test_a_rejected_delta_passes_the_mark_and_its_node_reads_why():
    ledger = rejected(merged(Ledger(), card_of(10, covers="1-10")), 20, covers="11-20")
    assert has(ledger, card_of(20))
    assert ledger.account("n1", "abc").rejected == StepRanges.of(11, 20)
    assert ledger.account("n1", "abc").merged == StepRanges.of(1, 10)
    assert ledger.rows["n1"].rejected == ((20, "not finite"),)


def test_steps_that_were_merged_do_not_count_as_rejected_too():
    ledger = rejected(merged(Ledger(), card_of(10, covers="1-10")), 20, covers="5-20")
    assert ledger.account("n1", "abc").rejected == StepRanges.of(11, 20)


def test_a_rejected_delta_of_a_peer_is_known_again_by_its_blob():
    ledger = rejected(Ledger(), 20, nonce=None, blob="bad")
    assert has(ledger, card_of(20, nonce=None), blob="bad")
    assert not has(ledger, card_of(20, nonce=None), blob="good")


def test_a_file_that_says_nothing_of_itself_moves_no_mark_but_its_node_reads_why():
    ledger = rejected(merged(Ledger(), card_of(10)), 20, nonce=None, reason="no header", blob="bad")
    assert not has(ledger, card_of(20))
    assert ledger.rows["n1"].nonce == "abc"
    assert ledger.rows["n1"].rejected == ((20, "no header"),)
    assert (delta_path("n1", 20), "bad") in ledger.peer_blobs


def test_a_row_shows_the_last_reasons_each_cut_to_a_length():
    ledger = Ledger()
    for step in range(1, REASONS_KEPT + 3):
        ledger = rejected(ledger, step, reason=f"{step} " + "x" * 10_000)
    shown = ledger.rows["n1"].rejected
    assert [step for step, _ in shown] == list(range(3, REASONS_KEPT + 3))
    assert all(len(reason) == REASON_LENGTH for _, reason in shown)


# -- JSON ------------------------------------------------------------------------------------------


def test_a_ledger_with_everything_reads_back():
    ledger = merged(Ledger(), card_of(20, covers="1-15,17-20"))
    ledger = rejected(ledger, 30, covers="21-30")
    ledger = merged(ledger, card_of(7, node_id="peer", nonce=None))
    assert Ledger.from_json(ledger.to_json(), rows=ledger.rows) == ledger
    assert ledger.account("n1", "abc").rejected != NO_STEPS


ACCOUNT: list[Any] = ["n1", "abc", 20, "1-20", "", 100, 1]


def changed(index: int, value: Any) -> list[Any]:
    return [*ACCOUNT[:index], value, *ACCOUNT[index + 1 :]]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "5",
        "{}",
        "[" * 200_000,
        json.dumps({"accounts": [], "peer_blobs": 5}),
        json.dumps({"accounts": [], "peer_blobs": [["only a path"]]}),
        json.dumps({"accounts": [["n1"]], "peer_blobs": []}),
        json.dumps({"accounts": [changed(2, "x")], "peer_blobs": []}),
        json.dumps({"accounts": [changed(2, float("inf"))], "peer_blobs": []}),
        json.dumps({"accounts": [changed(3, "20-1")], "peer_blobs": []}),
        json.dumps({"accounts": [changed(3, 5)], "peer_blobs": []}),
        json.dumps({"accounts": [changed(5, None)], "peer_blobs": []}),
    ],
)
def test_a_malformed_ledger_is_refused(text: str):
    with pytest.raises(GlobalError, match="ledger"):
        Ledger.from_json(text, rows={})
