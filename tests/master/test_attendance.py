from ray_diloco.hub.repository import FileEntry
from ray_diloco.master.attendance import Attendance
from ray_diloco.protocol.clock import Micros
from ray_diloco.protocol.node_card import NodeCard
from ray_diloco.protocol.paths import node_card_path


def listing(*node_ids: str) -> dict[str, FileEntry]:
    paths = [f"nodes/{node_id}/delta_1.safetensors" for node_id in node_ids]
    return {path: FileEntry(path=path, size=1, blob_id=path, sha256=None) for path in paths}


def attendance() -> Attendance:
    """Of two nodes: a moved at 0, b at 30; 100 of silence count as gone."""
    found = Attendance(["a"], node_timeout=Micros(100), anew=False, now=Micros(0))
    found.note({}, listing("b"), Micros(30))
    return found


def test_all_are_gone_when_the_last_of_them_has_long_been_silent():
    found = attendance()
    assert not found.all_gone(Micros(129))
    assert found.all_gone(Micros(130))


def test_the_next_silence_is_the_one_that_ends_the_run():
    assert attendance().next_silence(Micros(0)) == 130
    assert attendance().next_silence(Micros(110)) == 130


def test_a_silence_that_is_over_is_not_waited_for():
    assert attendance().next_silence(Micros(130)) is None


def test_nobody_is_waited_for_when_all_are_known_to_have_ended():
    found = attendance()
    found.forget("a")
    found.forget("b")
    assert found.next_silence(Micros(0)) is None
    assert found.all_gone(Micros(0))


def test_who_never_came_is_known():
    found = attendance()
    assert found.missing() == ("a",)
    found.forget_unseen()
    assert found.missing() == ()


def test_a_run_that_is_to_end_waits_for_nobody_who_never_came():
    found = attendance()
    found.forget_unseen()
    assert found.all_gone(Micros(130))
    assert not found.all_gone(Micros(129))  # b came


def test_who_never_came_is_waited_for_while_the_run_goes_on():
    found = Attendance(["a"], node_timeout=Micros(100), anew=False, now=Micros(0))
    assert not found.all_gone(Micros(99))
    found.forget_unseen()
    assert found.all_gone(Micros(99))


def test_a_claim_of_the_session_that_goes_on_counts_in_its_first_listing():
    began = "2026-01-01T00:00:05.000000+00:00"
    started = {"a": "2026-01-01T00:00:05.000000+00:00", "b": "2026-01-01T00:00:00.000000+00:00"}
    found = Attendance(["a", "b"], node_timeout=Micros(100), anew=True, began=began, now=Micros(0))
    paths = map(node_card_path, started)
    claims = {path: FileEntry(path=path, size=1, blob_id=path, sha256=None) for path in paths}
    found.note({}, claims, Micros(10))
    for node_id, entry in zip(started, found.unread(claims), strict=True):
        card = NodeCard(nonce=node_id, started=started[node_id], state="done", run_id="run")
        found.claimed(entry, card)
    assert list(found.departed()) == [("a", "a")]
    assert found.missing() == ("b",)
    assert found.unread(claims) == ()
