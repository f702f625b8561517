"""A node that ends lets others know, however it ends, as far as it can."""

import threading
from dataclasses import replace

import pytest
from node_scene import (
    SETTINGS,
    PowerCut,
    Stream,
    Wire,
    begin,
    publish,
    repository_with,
    row,
    scripted_weights,
)

from ray_diloco.errors import NodeInUseError
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


def test_a_node_whose_name_was_in_use_until_the_run_was_over_fails_and_says_so(tmp_path):
    repository = repository_with()
    other = NodeCard(nonce="other", started="2030-01-01T00:00:00+00:00", state="active")
    repository.commit("claim", additions=[Addition(path=CLAIM, source=other.to_json())])
    publish(repository, 1, scripted_weights(1), stop="every node is done")
    life = begin(repository, tmp_path, settings=replace(SETTINGS, node_timeout=5.0))
    with pytest.raises(NodeInUseError) as caught:
        life.node.run()
    for word in ("'n0' is in use", "2030-01-01", "other", "run.takeover=true", "every node"):
        assert word in str(caught.value)
    assert life.of("name_in_use") == [
        {"event": "name_in_use", "nonce": "other", "since": "2030-01-01T00:00:00+00:00"}
    ]


def test_a_node_that_waits_for_its_name_shows_that_it_waits(tmp_path):
    repository = repository_with()
    other = NodeCard(nonce="other", started="2030-01-01T00:00:00+00:00", state="active")
    repository.commit("claim", additions=[Addition(path=CLAIM, source=other.to_json())])
    states = []
    life = begin(
        Wire(repository, before=lambda _: states.append(life.node.status().state)),
        tmp_path,
        settings=replace(SETTINGS, node_timeout=5.0),
        steps=4,
    )
    assert life.node.run().local_steps == 4
    assert "waiting for its name" in states


def test_a_node_that_was_taken_over_fails_and_leaves_the_new_claim_alone(tmp_path):
    repository = repository_with()

    def taken_over(name):
        if name == "head" and claim_in(repository).nonce == "first":
            successor = NodeCard(nonce="new", started="2030-01-01T00:00:00+00:00", state="active")
            repository.commit("claim", additions=[Addition(path=CLAIM, source=successor.to_json())])
            publish(repository, 1, scripted_weights(1), nodes=row("new", 8))

    with pytest.raises(NodeInUseError, match="taken over"):
        begin(Wire(repository, before=taken_over), tmp_path).node.run()
    assert (claim_in(repository).nonce, claim_in(repository).state) == ("new", "active")


def test_a_node_that_watches_its_name_can_be_stopped(tmp_path):
    repository = repository_with()
    other = NodeCard(nonce="other", started="2030-01-01T00:00:00+00:00", state="active")
    repository.commit("claim", additions=[Addition(path=CLAIM, source=other.to_json())])
    port = WallPort()
    node = begin(repository, tmp_path, port=port).node
    reports = []
    thread = threading.Thread(target=lambda: reports.append(node.run()), daemon=True)
    thread.start()
    node.stop("enough")
    thread.join(20)
    assert (reports[0].local_steps, reports[0].stop_reason) == (0, "enough")
    assert claim_in(repository).nonce == "other"
