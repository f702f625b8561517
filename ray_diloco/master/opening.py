"""How a master begins: it publishes the first global, or takes up the one that is there."""

import logging
from collections.abc import Generator
from dataclasses import replace
from typing import Any

from ray_diloco.errors import GlobalError
from ray_diloco.hub.cards import check_same_run, read_card
from ray_diloco.hub.patience import Retry
from ray_diloco.hub.repository import Repository
from ray_diloco.master.outer_loop import OuterLoop
from ray_diloco.master.outer_optimizer import OuterOptimizer
from ray_diloco.master.outer_state import GlobalFiles
from ray_diloco.master.publication import Publication
from ray_diloco.master.publishing import Publisher, superseded
from ray_diloco.master.recovery import Opened, Recovery
from ray_diloco.master.round_files import write_first_global
from ray_diloco.master.round_memory import LEDGER
from ray_diloco.master.shelf import Shelf
from ray_diloco.protocol.clock import Clock, Effect
from ray_diloco.protocol.global_card import GlobalCard
from ray_diloco.protocol.ledger import Ledger
from ray_diloco.protocol.run import RunIdentity
from ray_diloco.tensors.dtypes import State
from ray_diloco.tensors.schema import StateSchema

logger = logging.getLogger(__name__)


class Opening:
    """The first steps of one master."""

    def __init__(
        self,
        repository: Repository,
        retry: Retry,
        *,
        publisher: Publisher,
        recovery: Recovery,
        clock: Clock,
        run: RunIdentity,
        resume: bool,
        fragments: int = 1,
    ) -> None:
        """``resume``: the run goes on, even when it had ended. ``fragments``: into how many the
        model is cut.
        """
        self._repository = repository
        self._retry = retry
        self._publisher = publisher
        self._recovery = recovery
        self._clock = clock
        self._run = run
        self._resume = resume
        self._fragments = fragments

    def open(
        self,
        initial: State,
        *,
        schema: StateSchema,
        optimizer: OuterOptimizer,
        shelf: Shelf,
    ) -> Generator[Effect, Any, Opened]:
        """Take up the run that the repository holds, or publish outer step 0 from ``initial``.

        ForeignRunError when what it holds is not ours to lead, GlobalError when it is of another
        model, SupersededError when another master began at the same time.
        """
        commit = yield from self._retry.asking(self._repository.head_commit, kind="look")
        card = yield from read_card(self._repository, self._retry, commit)
        if card is None:
            return (yield from self._begin(initial, schema, optimizer, shelf, commit))
        check_same_run(card, self._run, repo_id=self._repository.repo_id, resume=self._resume)
        opened = yield from self._recovery.take_up(card, commit)
        if card.closed and not self._resume:
            return opened
        return (yield from self._lead_on(opened, optimizer))

    def _lead_on(self, opened: Opened, optimizer: OuterOptimizer) -> Generator[Effect, Any, Opened]:
        """Publish the same weights under the next epoch: whoever led before can publish no more."""
        epoch = opened.card.master_epoch + 1
        card = replace(opened.card, master_epoch=epoch, round=(), optimizer=optimizer.label)
        if self._resume:
            card = replace(card, stop=None, closed=False)
        loop = OuterLoop(card=opened.card, ledger=opened.ledger, now=self._clock.now())
        publication = Publication(card=card, ledger=opened.ledger, with_state=False)
        card = self._publisher.complete(publication, model=None, state=None)
        landed = yield from self._publisher.publish(
            publication, loop, card, model=None, state=None, parent=opened.commit
        )
        if landed is None:
            raise superseded(self._repository, opened.card)
        logger.info("outer step %d is led on as epoch %d", card.outer_step, card.master_epoch)
        return replace(opened, card=card, commit=landed)

    def _begin(
        self,
        initial: State,
        schema: StateSchema,
        optimizer: OuterOptimizer,
        shelf: Shelf,
        commit: str,
    ) -> Generator[Effect, Any, Opened]:
        empty = GlobalCard(outer_step=0)
        ledger = Ledger()
        strings = {LEDGER: ledger.to_json()}
        files = write_first_global(
            initial,
            schema=schema,
            optimizer=optimizer,
            folder=shelf.new(),
            model_metadata={"format": "pt"},
            state_metadata=strings,
        )
        card = replace(
            empty,
            bootstrap=True,
            optimizer=optimizer.label,
            run_id=self._run.run_id,
            config_hash=self._run.config_hash,
            master_epoch=1,
            fragment_steps=(0,) * self._fragments if self._fragments > 1 else (),
        )
        publication = Publication(card=card, ledger=ledger)
        card = self._publisher.complete(publication, model=files.model, state=files.state)
        loop = OuterLoop(card=empty, ledger=ledger, now=self._clock.now())
        landed = yield from self._publisher.publish(
            publication, loop, card, model=files.model, state=files.state, parent=commit
        )
        if landed is None:
            raise GlobalError(
                f"{self._repository.repo_id}: the first global could not be published"
            )
        begun = GlobalFiles(model=files.model.path, state=files.state.path, outer_step=0)
        return Opened(card=card, files=begun, ledger=ledger, strings=strings, commit=landed)
