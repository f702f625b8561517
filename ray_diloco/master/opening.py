"""How a master begins: it publishes the first global, or takes up the one that is there."""

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray_diloco.errors import ForeignRunError, GlobalError
from ray_diloco.hub.patience import Retry
from ray_diloco.hub.repository import Repository
from ray_diloco.master.outer_loop import OuterLoop, Publication
from ray_diloco.master.outer_optimizer import OuterOptimizer
from ray_diloco.master.outer_state import GlobalFiles
from ray_diloco.master.publishing import Publisher, read_card
from ray_diloco.master.round_files import write_first_global
from ray_diloco.protocol.clock import Clock, Effect, Transfer
from ray_diloco.protocol.global_card import GlobalCard
from ray_diloco.protocol.ledger import Ledger
from ray_diloco.protocol.paths import CARD_PATH
from ray_diloco.protocol.run import RunIdentity
from ray_diloco.tensors.dtypes import State
from ray_diloco.tensors.schema import StateSchema

LEDGER = "ledger"
"""Metadata field of the outer state that holds the ledger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A published global and what the next round needs of it."""

    card: GlobalCard
    files: GlobalFiles
    ledger: Ledger
    commit: str


def check_same_run(card: GlobalCard, run: RunIdentity, *, repo_id: str, resume: bool) -> None:
    """ForeignRunError unless this master may go on with what the repository holds."""
    if card.publication_id is None:
        raise ForeignRunError(
            f"{repo_id} is led by a plain peer, which keeps its ledger to itself; "
            "expected an empty repository (hub.repo_id)"
        )
    if card.run_id != run.run_id and not resume:
        raise ForeignRunError(
            f"{repo_id} holds run {card.run_id!r}; choose another hub.repo_id, or set "
            "run.resume to go on with it"
        )
    if card.config_hash != run.config_hash:
        raise ForeignRunError(
            f"{repo_id} holds run {card.run_id!r} with other settings (model, data or diloco); "
            "expected the configuration that it was started with"
        )


def take_up(
    card: GlobalCard, *, repository: Repository, retry: Retry, commit: str, folder: Path
) -> Generator[Effect, Any, Opened]:
    """Fetch a global with its outer state. GlobalError when they are not what the card says."""
    if card.state_file is None:
        raise GlobalError(f"{CARD_PATH} names no outer state")
    model, state = folder / "latest.safetensors", folder / "outer_state.safetensors"
    for path, place, sha256 in (
        (card.model_file, model, card.model_sha256),
        (card.state_file, state, card.state_sha256),
    ):
        yield from retry.asking(
            lambda path=path, place=place, sha256=sha256: repository.fetch(
                path, commit=commit, destination=place, sha256=sha256
            )
        )
        yield Transfer("down", place.stat().st_size)
    files = GlobalFiles(model=model, state=state, outer_step=card.outer_step)
    ledger = Ledger.from_json(files.state_metadata().get(LEDGER, ""), rows=card.nodes)
    return Opened(card=card, files=files, ledger=ledger, commit=commit)


def open_run(
    initial: State,
    *,
    schema: StateSchema,
    run: RunIdentity,
    resume: bool,
    optimizer: OuterOptimizer,
    repository: Repository,
    retry: Retry,
    publisher: Publisher,
    clock: Clock,
    folder: Path,
) -> Generator[Effect, Any, Opened]:
    """Take up the run that the repository holds, or publish outer step 0 from ``initial``.

    ForeignRunError when what it holds is not ours to lead, GlobalError when it is of another model.
    """
    commit = yield from retry.asking(repository.head_commit, kind="look")
    card = yield from read_card(repository, retry, commit)
    if card is not None:
        check_same_run(card, run, repo_id=repository.repo_id, resume=resume)
        opened = yield from take_up(
            card, repository=repository, retry=retry, commit=commit, folder=folder
        )
        schema.check({entry.name: entry for entry in opened.files.schema()})
        return opened
    card = GlobalCard(
        outer_step=0,
        bootstrap=True,
        run_id=run.run_id,
        config_hash=run.config_hash,
        master_epoch=1,
    )
    ledger = Ledger()
    files = write_first_global(
        initial,
        schema=schema,
        optimizer=optimizer,
        folder=folder,
        model_metadata={"format": "pt"},
        state_metadata={LEDGER: ledger.to_json()},
    )
    loop = OuterLoop(card=card, ledger=ledger, node_timeout=1.0, now=clock.now())
    entries = yield from retry.asking(lambda: repository.list_files("", commit=commit))
    loop.look(entries, now=clock.now())
    publication = Publication(card=card, ledger=ledger, merged=(), refused=(), deletions=())
    card = publisher.complete(publication, model=files.model, state=files.state)
    landed = yield from publisher.publish(
        publication, loop, card, model=files.model, state=files.state, parent=commit
    )
    if landed is None:
        raise GlobalError(f"{repository.repo_id}: the first global could not be published")
    state = GlobalFiles(model=files.model.path, state=files.state.path, outer_step=0)
    return Opened(card=card, files=state, ledger=ledger, commit=landed)
