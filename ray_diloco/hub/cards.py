"""The metadata of a global as it lies in the repository, and whose run it is of."""

from collections.abc import Generator
from typing import Any

from ray_diloco.errors import EntryMissing, ForeignRunError
from ray_diloco.hub.patience import Retry
from ray_diloco.hub.repository import Repository
from ray_diloco.protocol.clock import Effect
from ray_diloco.protocol.global_card import CARD_LIMIT, GlobalCard
from ray_diloco.protocol.paths import CARD_PATH
from ray_diloco.protocol.run import RunIdentity


def read_card(
    repository: Repository, retry: Retry, commit: str
) -> Generator[Effect, Any, GlobalCard | None]:
    """The global's metadata at a commit; None when there is none. GlobalError when malformed."""
    try:
        data = yield from retry.asking(
            lambda: repository.read(CARD_PATH, commit=commit, limit=CARD_LIMIT)
        )
    except EntryMissing:
        return None
    return GlobalCard.from_json(data)


def check_same_run(card: GlobalCard, run: RunIdentity, *, repo_id: str, resume: bool) -> None:
    """ForeignRunError unless this master may go on with what the repository holds. A run id of ""
    means the run that is there.
    """
    if card.publication_id is None:
        raise ForeignRunError(
            f"{repo_id} is led by a plain peer, which keeps its ledger to itself; "
            "expected an empty repository (hub.repo_id)"
        )
    if run.run_id not in ("", card.run_id) and not resume:
        raise ForeignRunError(
            f"{repo_id} holds run {card.run_id!r}; choose another hub.repo_id, or set "
            "run.resume to go on with it"
        )
    if card.config_hash != run.config_hash:
        raise ForeignRunError(
            f"{repo_id} holds run {card.run_id!r} with other settings (model, data or diloco); "
            "expected the configuration that it was started with"
        )
