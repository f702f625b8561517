"""A node that ends lets others know, however it ends, as far as it can."""

import threading

import pytest
from node_scene import PowerCut, Stream, begin, repository_with

from ray_diloco.hub.repository import Addition
from ray_diloco.protocol.node_card import NodeCard
from ray_diloco.protocol.paths import node_card_path
from ray_diloco.timing.wall import WallPort

CLAIM = node_card_path("n0")


class BadStream(Stream):
    """Its sixth batch cannot be had."""

    def __iter__(self):
        for number, batch in enumerate(super().__iter__()):
            if number == 5:
                raise ValueError("the sixth batch is broken")
            yield batch


def claim_in(repository):
    data = repository.read(CLAIM, commit=repository.head_commit(), limit=10_000)
    return NodeCard.from_json(data, path=CLAIM)


def test_a_node_that_fails_gives_its_name_back(tmp_path):
    repository = repository_with()
    with pytest.raises(ValueError, match="sixth batch"):
        begin(repository, tmp_path, stream=BadStream()).node.run()
    claim = claim_in(repository)
    assert (claim.state, claim.last_local_step) == ("done", 5)


def test_a_node_that_is_cut_off_cannot(tmp_path):
    repository = repository_with()
    with pytest.raises(PowerCut):
        begin(repository, tmp_path, stream=Stream(cut_at=5)).node.run()
    assert claim_in(repository).state == "active"


def test_a_node_that_watches_its_name_can_be_stopped(tmp_path):
    repository = repository_with()
    other = NodeCard(nonce="other", started="2030-01-01T00:00:00+00:00", state="active")
    repository.commit("claim", additions=[Addition(path=CLAIM, source=other.to_json())])
    port = WallPort()
    node = begin(repository, tmp_path, port=port).node
    reports = []
    thread = threading.Thread(target=lambda: reports.append(node.run()))
    thread.start()
    node.stop("enough")
    thread.join(20)
    assert (reports[0].local_steps, reports[0].stop_reason) == (0, "enough")
    assert claim_in(repository).nonce == "other"
