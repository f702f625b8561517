"""A hub over HTTP for masters that are processes."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from killed_master import Place

from ray_diloco.hub.embedded.server import EmbeddedHub
from ray_diloco.hub.entrance import ensure_repository


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedHub]:
    folder: Path = tmp_path_factory.mktemp("hub")
    serving = EmbeddedHub(folder).start()
    yield serving
    serving.close()


@pytest.fixture
def place(hub: EmbeddedHub, counter: Callable[[], int]) -> Place:
    """An empty repository of its own."""
    repo_id = ensure_repository(
        endpoint=hub.endpoint, token=hub.token, repo_id=f"local/run{counter()}"
    )
    return Place(endpoint=hub.endpoint, token=hub.token.reveal(), repo_id=repo_id)


@pytest.fixture(scope="session")
def counter() -> Callable[[], int]:
    return itertools.count().__next__
