"""Real nodes and a real master, held bit for bit against the protocol in a single loop."""

from contextlib import contextmanager

import pytest
import reference
import torch
from parts import Played, moments_of, play
from safetensors.torch import load_file
from subjects import Complex, Counting, Half, Plain, Tied, batches, build

from ray_diloco.hub.client import HubRepository
from ray_diloco.hub.embedded.server import EmbeddedHub
from ray_diloco.hub.entrance import enter
from ray_diloco.hub.settings import HubSettings
from ray_diloco.protocol.settings import DilocoSettings

KINDS = (Plain, Tied, Half, Counting, Complex)
POLICIES = ("rebase", "replace", "boundary")


def settings(**changed) -> DilocoSettings:
    defaults = {"inner_steps": 4, "poll_interval": 0.5, "bootstrap_timeout": 20.0}
    return DilocoSettings(**(defaults | changed))


def blocking(**changed) -> DilocoSettings:
    return settings(async_delta_upload=False, async_global_poll=False, **changed)


def replayed(played: Played, kind, data, used: DilocoSettings):
    """What the single loop makes of the same moments."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return reference.play(
            moments_of(played),
            models={node_id: build(kind) for node_id in data},
            batches=data,
            optimizer=lambda model: reference.adamw(model, lr=0.05),
            outer_lr=used.outer_lr,
            outer_momentum=used.outer_momentum,
            install=used.install,
            reset=used.reset_inner_optimizer,
        )
    finally:
        torch.set_num_threads(before)


def assert_equal(played: Played, kind, data, used: DilocoSettings) -> None:
    published, models = replayed(played, kind, data, used)
    final = load_file(played.master.model_file)
    assert len(published) == played.master.outer_steps + 1
    assert_same_bits(final, published[-1])
    for node_id, model in played.models.items():
        assert_same_bits(model.state_dict(), models[node_id])


def assert_same_bits(found, expected) -> None:
    assert expected.keys() <= found.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value), name


def rounds_of(played: Played) -> list[int]:
    """How many deltas each outer round merged."""
    return [len(details[0]) for what, *details in moments_of(played) if what == "merge"]


@pytest.mark.parametrize("kind", KINDS)
def test_one_node_over_several_rounds_has_the_references_bits(kind, tmp_path):
    used, data = settings(), {"a": batches(1)}
    played = play(tmp_path, build=lambda: build(kind), batches=data, settings=used, steps=18)
    assert rounds_of(played) == [1, 1, 1, 1, 1]
    assert played.nodes["a"].installs >= 4
    assert_equal(played, kind, data, used)


def test_a_blocking_node_goes_through_the_moments_that_the_protocol_says(tmp_path):
    used, data = blocking(poll_interval=100.0), {"a": batches(1)}
    played = play(
        tmp_path, build=lambda: build(Plain), batches=data, settings=used, steps=8
    )
    step = ("step", "a")
    assert [each for each in moments_of(played) if each[0] != "merge"] == [
        ("install", "a", 0),
        *[step] * 4,
        ("send", "a", 4),
        ("land", "a"),
        *[step] * 4,
        ("send", "a", 8),
        ("land", "a"),
    ]
    assert_equal(played, Plain, data, used)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("install", POLICIES)
def test_two_nodes_alternating_have_the_references_bits(kind, install, tmp_path):
    used = settings(install=install, poll_interval=0.1)
    data = {"a": batches(1), "b": batches(2)}
    played = play(
        tmp_path,
        build=lambda: build(kind),
        batches=data,
        settings=used,
        steps=17,
        seconds={"a": 1.0, "b": 1.31},
    )
    assert set(rounds_of(played)) == {1}
    assert_equal(played, kind, data, used)


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("install", POLICIES)
def test_blocking_lanes_with_and_without_reset_have_the_references_bits(reset, install, tmp_path):
    used = blocking(install=install, reset_inner_optimizer=reset)
    data = {"a": batches(1), "b": batches(2)}
    played = play(
        tmp_path,
        build=lambda: build(Plain),
        batches=data,
        settings=used,
        steps=17,
        seconds={"a": 1.0, "b": 1.31},
    )
    assert_equal(played, Plain, data, used)


def test_three_nodes_in_one_round_have_the_references_bits(tmp_path):
    used = settings(reset_inner_optimizer=False, outer_momentum=0.5)
    data = {"a": batches(1), "b": batches(2), "c": batches(3)}
    played = play(
        tmp_path, build=lambda: build(Counting), batches=data, settings=used, steps=12
    )
    assert max(rounds_of(played)) > 1
    assert_equal(played, Counting, data, used)


@contextmanager
def embedded(folder):
    """A function that opens a repository on a hub of its own."""
    with EmbeddedHub(folder) as hub:

        def open_repository():
            repo_id = enter(
                HubSettings(), endpoint=hub.endpoint, token=hub.token, repo_id="run", make=True
            )
            return lambda: HubRepository(
                endpoint=hub.endpoint, token=hub.token, repo_id=repo_id, branch="main"
            )

        yield open_repository


@pytest.mark.parametrize("install", POLICIES)
def test_over_the_embedded_hub_the_bits_are_the_references_too(install, tmp_path):
    used, data = settings(install=install), {"a": batches(1), "b": batches(2)}
    with embedded(tmp_path / "hub") as open_repository:
        played = play(
            tmp_path,
            build=lambda: build(Counting),
            batches=data,
            settings=used,
            steps=13,
            seconds={"a": 1.0, "b": 1.31},
            open_repository=open_repository,
        )
    assert_equal(played, Counting, data, used)
