"""Real nodes and a real master, held bit for bit against the protocol in a single loop."""

from dataclasses import dataclass

import pytest
import reference
import torch
from moments import moments_of
from reference_state import adamw
from safetensors.torch import load_file
from scene import IN_MEMORY, Part, Scene, playing
from subjects import Complex, Counting, Half, Plain, Tied, batches, build

from ray_diloco.cluster.hub_service import HubAccess
from ray_diloco.hub.embedded.server import EmbeddedHub
from ray_diloco.hub.entrance import enter
from ray_diloco.hub.settings import HubSettings
from ray_diloco.protocol.settings import DilocoSettings
from ray_diloco.timing.profile import NodeProfile

KINDS = (Plain, Tied, Half, Counting, Complex)
POLICIES = ("rebase", "replace", "boundary")
ONE = {"a": NodeProfile()}
ALTERNATING = {"a": NodeProfile(), "b": NodeProfile(seconds_per_step=1.31)}
SLOW_LINKS = {
    "a": NodeProfile(latency_ms=2700.0),
    "b": NodeProfile(seconds_per_step=1.31, latency_ms=900.0),
}


def settings(**changed) -> DilocoSettings:
    defaults = {"inner_steps": 4, "poll_interval": 0.1, "bootstrap_timeout": 60.0}
    return DilocoSettings(**(defaults | changed))


def blocking(**changed) -> DilocoSettings:
    return settings(async_delta_upload=False, async_global_poll=False, **changed)


@dataclass(kw_only=True)
class Played:
    """A run that has ended well."""

    nodes: dict[str, Part]
    master: Part
    moments: list[tuple]

    @property
    def deltas_per_round(self) -> list[int]:
        return [len(details[0]) for what, *details in self.moments if what == "merge"]


def play(folder, kind, used, profiles, *, steps, access=IN_MEMORY) -> Played:
    scene = Scene(folder, lambda: build(kind), used, access=access)
    nodes = {
        node_id: scene.add_node(node_id, batches(number), steps=steps, profile=profile)
        for number, (node_id, profile) in enumerate(profiles.items())
    }
    master = scene.add_master(expected=list(profiles))
    with playing(scene):
        pass
    return Played(nodes=nodes, master=master, moments=moments_of(nodes, master))


def assert_the_references_bits(played: Played, kind, used: DilocoSettings) -> None:
    """Every global's number, the last global and all models are those of the single loop."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    published, models = reference.play(
        played.moments,
        models={node_id: build(kind) for node_id in played.nodes},
        batches={node_id: batches(number) for number, node_id in enumerate(played.nodes)},
        optimizer=lambda model: adamw(model, lr=0.05),
        outer_lr=used.outer_lr,
        outer_momentum=used.outer_momentum,
        install=used.install,
        reset=used.reset_inner_optimizer,
    )
    torch.set_num_threads(before)
    assert len(published) == played.master.report.outer_steps + 1
    assert_same_bits(load_file(played.master.report.model_file), published[-1])
    for node_id, part in played.nodes.items():
        assert_same_bits(part.model.state_dict(), models[node_id])


def assert_same_bits(found, expected) -> None:
    assert expected.keys() <= found.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("kind", KINDS)
def test_one_node_over_several_rounds_has_the_references_bits(kind, tmp_path):
    used = settings(poll_interval=0.5)
    played = play(tmp_path, kind, used, ONE, steps=18)
    assert played.deltas_per_round == [1, 1, 1, 1, 1]
    assert played.nodes["a"].report.installs >= 4
    assert_the_references_bits(played, kind, used)


def test_a_blocking_node_goes_through_the_moments_that_the_protocol_says(tmp_path):
    used, step = blocking(poll_interval=100.0), ("step", "a")
    played = play(tmp_path, Plain, used, ONE, steps=8)
    assert [each for each in played.moments if each[0] != "merge"] == [
        ("install", "a", 0),
        *[step] * 4,
        ("send", "a", 4),
        ("land", "a"),
        *[step] * 4,
        ("send", "a", 8),
        ("land", "a"),
    ]
    assert_the_references_bits(played, Plain, used)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("install", POLICIES)
def test_two_nodes_alternating_have_the_references_bits(kind, install, tmp_path):
    used = settings(install=install)
    played = play(tmp_path, kind, used, ALTERNATING, steps=17)
    assert set(played.deltas_per_round) == {1}
    assert_the_references_bits(played, kind, used)


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("install", POLICIES)
def test_blocking_lanes_with_and_without_reset_have_the_references_bits(reset, install, tmp_path):
    used = blocking(install=install, reset_inner_optimizer=reset)
    played = play(tmp_path, Plain, used, ALTERNATING, steps=17)
    assert_the_references_bits(played, Plain, used)


@pytest.mark.parametrize("install", POLICIES)
def test_transfers_that_outlast_installations_have_the_references_bits(install, tmp_path):
    used = settings(install=install, inner_steps=2, reset_inner_optimizer=False)
    played = play(tmp_path, Counting, used, SLOW_LINKS, steps=17)
    assert sum(part.report.skipped_boundaries for part in played.nodes.values()) > 0
    assert_the_references_bits(played, Counting, used)


def test_several_deltas_in_one_round_have_the_references_bits(tmp_path):
    used = settings(poll_interval=0.5, outer_momentum=0.5)
    three = {node_id: NodeProfile() for node_id in "abc"}
    played = play(tmp_path, Counting, used, three, steps=12)
    assert max(played.deltas_per_round) > 1
    assert_the_references_bits(played, Counting, used)


@pytest.fixture
def embedded(tmp_path):
    """The way to a repository on a hub of its own."""
    with EmbeddedHub(tmp_path / "hub") as hub:
        repo_id = enter(
            HubSettings(), endpoint=hub.endpoint, token=hub.token, repo_id="run", make=True
        )
        yield HubAccess(repo_id=repo_id, endpoint=hub.endpoint, token=hub.token)


@pytest.mark.parametrize("install", POLICIES)
def test_over_the_embedded_hub_the_bits_are_the_references_too(install, embedded, tmp_path):
    used = settings(install=install)
    played = play(tmp_path, Counting, used, ALTERNATING, steps=13, access=embedded)
    assert_the_references_bits(played, Counting, used)
