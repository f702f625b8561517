"""What one commit knows of a node's name: its claim, its deltas, its row in the global's table."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from ray_diloco.errors import ContentError
from ray_diloco.hub.cards import read_card
from ray_diloco.hub.patience import Retry
from ray_diloco.hub.repository import FileEntry, Repository
from ray_diloco.protocol.clock import Effect
from ray_diloco.protocol.global_card import GlobalCard, NodeRow
from ray_diloco.protocol.node_card import NodeCard
from ray_diloco.protocol.paths import NODES_FOLDER, node_card_path, parse_delta_path

CLAIM_LIMIT = 64 * 1024
"""The most bytes that a node's claim may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """``claim``: None when there is none that can be read; ``card``: of the global, likewise."""

    node_id: str
    claim: NodeCard | None
    files: tuple[FileEntry, ...]
    card: GlobalCard | None

    @property
    def row(self) -> NodeRow | None:
        return self.card.nodes.get(self.node_id) if self.card is not None else None

    @property
    def sign(self) -> object:
        """Changes when something of the node moves."""
        return self.files, self.row.last_local_step if self.row is not None else 0

    @property
    def nonces(self) -> frozenset[str]:
        """Those that had the name, as far as can be seen."""
        seen = (self.claim.nonce if self.claim else None, self.row.nonce if self.row else None)
        return frozenset(each for each in seen if each is not None)

    @property
    def highest(self) -> int:
        """The last local step that the name was used for."""
        numbers = [found.local_step for e in self.files if (found := parse_delta_path(e.path))]
        claimed = self.claim.last_local_step if self.claim is not None else 0
        return max([claimed, self.row.last_local_step if self.row else 0, *numbers])

    def highest_of(self, nonce: str) -> int:
        """The highest number that was sent under the nonce that has the name. Claims say more: what
        was trained, but perhaps never sent.
        """
        numbers = [found.local_step for e in self.files if (found := parse_delta_path(e.path))]
        row = self.row
        merged = row.last_local_step if row is not None and row.nonce == nonce else 0
        return max([merged, *numbers])


def look(node_id: str, repository: Repository, retry: Retry) -> Generator[Effect, Any, Sighting]:
    """At the newest commit. RevisionMissing when a lookup is late."""
    commit = yield from retry.asking(repository.head_commit, kind="look")
    folder, path = f"{NODES_FOLDER}/{node_id}", node_card_path(node_id)
    files = yield from retry.asking(lambda: repository.list_files(folder, commit=commit))
    claim = None
    if any(entry.path == path for entry in files):
        claim = yield from read_claim(path, repository, retry, commit)
    card = yield from read_sound_card(repository, retry, commit)
    return Sighting(node_id=node_id, claim=claim, files=files, card=card)


def read_claim(
    path: str, repository: Repository, retry: Retry, commit: str
) -> Generator[Effect, Any, NodeCard | None]:
    """None when what is there is no claim. EntryMissing when nothing is."""
    try:
        data = yield from retry.asking(
            lambda: repository.read(path, commit=commit, limit=CLAIM_LIMIT)
        )
        return NodeCard.from_json(data, path=path)
    except ContentError:
        return None


def read_sound_card(
    repository: Repository, retry: Retry, commit: str
) -> Generator[Effect, Any, GlobalCard | None]:
    """The global's metadata at a commit; None when there is none, or none that can be trusted."""
    try:
        return (yield from read_card(repository, retry, commit))
    except ContentError:
        return None
