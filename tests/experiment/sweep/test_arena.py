"""Which hub a trial gets, without starting anything."""

import pickle

import pytest

from ray_diloco.cluster.settings import RaySettings
from ray_diloco.errors import PermanentHubError
from ray_diloco.experiment.sweep.arena import Arena

TOKEN = "hf_" + "x" * 30


@pytest.fixture
def arena(tmp_path):
    with Arena(RaySettings(), tmp_path) as opened:
        yield opened


@pytest.mark.parametrize(
    "words", [("hub=memory",), ("run.role=single", "cluster.nodes=1", "hub=embedded")]
)
def test_a_trial_that_shares_no_repository_needs_no_hub(arena, proposed, words):
    assert arena.hub_for(proposed(*words).config) is None


def test_a_trial_on_huggingface_co_gets_the_token_that_its_process_does_not_inherit(
    arena, proposed, monkeypatch
):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub = arena.hub_for(proposed("hub=huggingface", "hub.repo_id=me/study").config)
    assert hub.endpoint == "https://huggingface.co"
    assert hub.token.reveal() == TOKEN
    assert TOKEN not in repr(hub)
    assert pickle.loads(pickle.dumps(hub)) == hub


def test_without_a_token_there_is_no_sweep_on_huggingface_co(arena, proposed, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("ray_diloco.hub.entrance.get_token", lambda: None)
    with pytest.raises(PermanentHubError, match="no token"):
        arena.hub_for(proposed("hub=huggingface", "hub.repo_id=me/study").config)
