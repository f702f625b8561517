"""Rounds: from a listing to a publication, and the files that the next round starts from."""

import json
import logging
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from ray_diloco.hub.patience import Retry
from ray_diloco.hub.repository import Repository
from ray_diloco.master.account import Account
from ray_diloco.master.aggregation import FetchedDelta
from ray_diloco.master.collecting import Collector
from ray_diloco.master.opening import LEDGER, Opened
from ray_diloco.master.outer_loop import Candidate, OuterLoop, Publication
from ray_diloco.master.outer_optimizer import OuterOptimizer
from ray_diloco.master.outer_state import GlobalFiles
from ray_diloco.master.publishing import Publisher
from ray_diloco.master.round_files import DescribeState, Merge, Round, aggregate_and_step, restate
from ray_diloco.master.shelf import Shelf
from ray_diloco.master.validation import Acceptance, NormLimits
from ray_diloco.protocol.clock import Clock, Compute, Effect, Micros
from ray_diloco.protocol.ledger import Ledger
from ray_diloco.protocol.run import Recorder
from ray_diloco.protocol.settings import DilocoSettings
from ray_diloco.tensors.safetensors_writer import WrittenFile
from ray_diloco.tensors.schema import StateSchema

logger = logging.getLogger(__name__)

NORMS = "norms"
"""Metadata field of the outer state that holds the norms merged lately."""
NORMS_KEPT = 100


class Rounds:
    """All rounds of one master, one at a time."""

    def __init__(
        self,
        opened: Opened,
        loop: OuterLoop,
        *,
        settings: DilocoSettings,
        schema: StateSchema,
        optimizer: OuterOptimizer,
        repository: Repository,
        retry: Retry,
        collector: Collector,
        publisher: Publisher,
        shelf: Shelf,
        account: Account,
        clock: Clock,
        record: Recorder,
    ) -> None:
        self.files = opened.files
        self._loop = loop
        self._settings = settings
        self._schema = schema
        self._optimizer = optimizer
        self._repository = repository
        self._retry = retry
        self._collector = collector
        self._publisher = publisher
        self._shelf = shelf
        self._account = account
        self._clock = clock
        self._record = record
        self._run_id = opened.card.run_id
        self._norms: list[float] = json.loads(opened.files.state_metadata().get(NORMS, "[]"))
        self._settled: str | None = None

    def round(self) -> Generator[Effect, Any, bool]:
        """Look once, and merge or close when it is time. Gives whether there is a new global."""
        loop = self._loop
        commit: str = yield from self._retry.asking(self._repository.head_commit, kind="look")
        merged = False
        if commit != self._settled:
            merged = yield from self._look(commit)
        elif loop.all_gone(self._clock.now()) and loop.nothing_left():
            yield from self._close(commit)
        return merged

    def _look(self, commit: str) -> Generator[Effect, Any, bool]:
        loop = self._loop
        entries = yield from self._retry.asking(
            lambda: self._repository.list_files("", commit=commit)
        )
        look = loop.look(entries, now=self._clock.now())
        acceptance = Acceptance(
            schema=self._schema,
            outer_step=loop.card.outer_step,
            run_id=self._run_id,
            accept_unbased=self._settings.accept_unbased,
        )
        complete = yield from self._collector.collect(look, loop, acceptance, commit=commit)
        ready = loop.ready()
        if ready:
            return (yield from self._merge(ready, commit))
        self._settled = commit if complete else None
        if complete and loop.all_gone(self._clock.now()) and loop.nothing_left():
            yield from self._close(commit)
        return False

    def _merge(self, ready: Sequence[Candidate], commit: str) -> Generator[Effect, Any, bool]:
        loop = self._loop
        candidates = {candidate.entry.path: candidate for candidate in ready}
        composed: list[Publication] = []

        def describe(merge: Merge) -> Mapping[str, str]:
            self._refuse(merge, candidates)
            taken = [candidates[delta.path] for delta in (*merge.merged, *merge.zero)]
            composed.append(loop.compose(taken, counted=len(merge.merged)))
            return self._metadata(composed[-1].ledger, (*self._norms, *merge.norms))

        deltas = [self._collector.fetched(candidate) for candidate in ready]
        done: Round = yield Compute(Micros(0), lambda: self._aggregate(deltas, describe))
        if done.publication is None:
            self._refuse(done.merge, candidates)
            for delta in done.merge.zero:
                loop.refused(candidates[delta.path].entry, "it changes nothing")
            return False
        files = done.publication
        if not (yield from self._publish(composed[-1], commit, files.model, files.state)):
            return False
        self._norms = [*self._norms, *done.merge.norms][-NORMS_KEPT:]
        return True

    def _aggregate(self, deltas: Sequence[FetchedDelta], describe: DescribeState) -> Round:
        settings = self._settings
        return aggregate_and_step(
            deltas,
            previous=self.files,
            schema=self._schema,
            optimizer=self._optimizer,
            limits=NormLimits(
                absolute=settings.max_delta_norm,
                relative=settings.max_relative_norm,
                history=tuple(self._norms),
            ),
            folder=self._shelf.new(),
            model_metadata={"format": "pt"},
            describe_state=describe,
        )

    def _refuse(self, merge: Merge, candidates: Mapping[str, Candidate]) -> None:
        for delta, error in merge.rejected:
            logger.warning("delta refused: %s", error)
            self._loop.refused(candidates[delta.path].entry, error.reason)

    def _close(self, commit: str) -> Generator[Effect, Any, None]:
        publication = self._loop.compose([], counted=0, closing=True)
        state = restate(
            self.files,
            schema=self._schema,
            folder=self._shelf.new(),
            metadata=self._metadata(publication.ledger, self._norms),
        )
        yield from self._publish(publication, commit, None, state)

    def _publish(
        self, publication: Publication, parent: str, model: WrittenFile | None, state: WrittenFile
    ) -> Generator[Effect, Any, bool]:
        loop, base = self._loop, self._loop.card.outer_step
        card = self._publisher.complete(publication, model=model, state=state)
        commit = yield from self._publisher.publish(
            publication, loop, card, model=model, state=state, parent=parent
        )
        if commit is None:
            return False
        loop.published(publication, card)
        self.files = GlobalFiles(
            model=model.path if model is not None else self.files.model,
            state=state.path,
            outer_step=card.outer_step,
        )
        self._collector.forget(publication.deletions)
        deltas = self._account.published(publication, base=base)
        self._record(
            "publication",
            outer_step=card.outer_step,
            commit=commit,
            model_sha256=card.model_sha256,
            deltas=deltas,
            refused=[refusal.reason for refusal in publication.refused],
            tokens_total=card.tokens_total,
            stop=card.stop,
        )
        logger.info("outer step %d: %d deltas merged", card.outer_step, len(deltas))
        return True

    def _metadata(self, ledger: Ledger, norms: Sequence[float]) -> dict[str, str]:
        return {LEDGER: ledger.to_json(), NORMS: json.dumps(list(norms)[-NORMS_KEPT:])}
