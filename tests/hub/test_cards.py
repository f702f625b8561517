from collections.abc import Iterator

import pytest

from ray_diloco.hub.connect import connect
from ray_diloco.hub.embedded.cards import problem_of
from ray_diloco.hub.embedded.server import EmbeddedHub
from ray_diloco.hub.model_card import CardHeader, publish_card, with_header
from ray_diloco.hub.settings import HubKind, HubSettings


@pytest.fixture
def repository(tmp_path, monkeypatch) -> Iterator:
    """A repository as on huggingface.co, over HTTP."""
    from huggingface_hub import HfApi

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    with EmbeddedHub(tmp_path) as hub:
        HfApi(endpoint=hub.endpoint, token=hub.token.reveal()).create_repo("me/run", private=True)
        settings = HubSettings(kind=HubKind.huggingface, endpoint=hub.endpoint)
        yield connect(settings, repo_id="me/run", token=hub.token)


def test_a_card_goes_through_the_unmodified_client(repository):
    text = with_header(
        "# A run\n",
        CardHeader(
            name="run",
            dataset="stdlib",
            task="text-generation",
            unit="nats per token",
            eval_loss=1.5,
        ),
    )
    commit = publish_card(repository, text)
    assert repository.read("README.md", commit=commit, limit=10_000).decode() == text
    assert publish_card(repository, text.replace("A run", "Another"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("# no header", None),
        ("---\nname: x\n---\n# y", None),
        ("---\nname: x\n", "no end"),
        ("---\nname: [x\n---\n", "no YAML"),
        ("---\n- x\n---\n", "no mapping"),
    ],
)
def test_a_header_that_cannot_be_read_is_told(text, problem):
    found = problem_of(text)
    assert found is None if problem is None else problem in (found or "")
