"""What happened in a repository, commit by commit, and the outer loop made by hand from it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import HfApi
from processes import REPO
from safetensors import safe_open
from safetensors.torch import load_file

from ray_diloco.hub.client import HubRepository
from ray_diloco.hub.embedded.server import EmbeddedHub

State = dict[str, torch.Tensor]
CARD, MODEL = "global/step_count.json", "global/latest.safetensors"


@dataclass(frozen=True, kw_only=True)
class Commit:
    """The repository at a commit: its files, and what became of them since the one before."""

    id: str
    before: str | None
    files: dict[str, str]
    added: list[str]


class History:
    """All commits of the run, oldest first."""

    def __init__(self, hub: EmbeddedHub, folder: Path) -> None:
        self._folder = folder
        self._repository = HubRepository(
            endpoint=hub.endpoint, token=hub.token, repo_id=REPO, branch="main"
        )
        api = HfApi(endpoint=hub.endpoint, token=hub.token.reveal())
        self._ids = [each.commit_id for each in reversed(api.list_repo_commits(REPO))]

    def __iter__(self) -> Iterator[Commit]:
        before, files = None, {}
        for commit_id in self._ids:
            entries = self._repository.list_files("", commit=commit_id)
            now = {entry.path: entry.blob_id for entry in entries}
            added = [path for path in now if files.get(path) != now[path]]
            yield Commit(id=commit_id, before=before, files=now, added=added)
            before, files = commit_id, now

    def card(self, commit: str) -> dict:
        return json.loads(self._repository.read(CARD, commit=commit, limit=10**7))

    def tensors(self, path: str, commit: str) -> State:
        return load_file(self._fetch(path, commit))

    def header(self, path: str, commit: str) -> dict[str, str]:
        with safe_open(self._fetch(path, commit), framework="pt") as file:
            return file.metadata()

    def _fetch(self, path: str, commit: str) -> Path:
        file = self._folder / "history" / commit / path.replace("/", "_")
        if not file.exists():
            self._repository.fetch(path, commit=commit, destination=file)
        return file


class OuterLoopByHand:
    """The mean of the deltas and one step with Nesterov momentum."""

    def __init__(self, first: State, *, lr: float = 0.7, momentum: float = 0.9) -> None:
        self.weights = {name: value.clone() for name, value in first.items()}
        self._momenta = {name: torch.zeros_like(value) for name, value in first.items()}
        self._lr, self._momentum = lr, momentum

    def merge(self, deltas: list[State]) -> None:
        for name, weight in self.weights.items():
            mean = torch.stack([delta[name] for delta in deltas]).mean(0)
            self._momenta[name] = self._momentum * self._momenta[name] + mean
            weight -= self._lr * (mean + self._momentum * self._momenta[name])

    def assert_equals(self, published: State) -> None:
        assert published.keys() == self.weights.keys()
        for name, weight in self.weights.items():
            torch.testing.assert_close(published[name], weight, rtol=1e-5, atol=1e-6, msg=name)
