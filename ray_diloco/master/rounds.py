"""Rounds: from a listing to a publication, and the files that the next round starts from."""

import json
import logging
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray_diloco.errors import RevisionMissing
from ray_diloco.hub.digest import git_blob_id
from ray_diloco.hub.patience import Retry
from ray_diloco.hub.repository import FileEntry, Repository
from ray_diloco.master.account import Account
from ray_diloco.master.aggregation import FetchedDelta
from ray_diloco.master.collecting import Collector
from ray_diloco.master.listing import deltas_in
from ray_diloco.master.outer_loop import Candidate, OuterLoop, Publication
from ray_diloco.master.outer_optimizer import OuterOptimizer
from ray_diloco.master.outer_state import GlobalFiles
from ray_diloco.master.publishing import Publisher, read_card, superseded
from ray_diloco.master.recovery import LEDGER, Opened, Recovery
from ray_diloco.master.round_files import DescribeState, Merge, Round, aggregate_and_step, restate
from ray_diloco.master.shelf import Shelf
from ray_diloco.master.squashing import Squasher
from ray_diloco.master.validation import Acceptance, NormLimits
from ray_diloco.protocol.clock import Clock, Compute, Effect, Micros
from ray_diloco.protocol.ledger import Ledger
from ray_diloco.protocol.paths import CARD_PATH
from ray_diloco.protocol.run import Recorder
from ray_diloco.protocol.settings import DilocoSettings
from ray_diloco.protocol.staleness import staleness
from ray_diloco.tensors.safetensors_writer import WrittenFile
from ray_diloco.tensors.schema import StateSchema

logger = logging.getLogger(__name__)

NORMS = "norms"
"""Metadata field of the outer state that holds the norms merged lately."""
NORMS_KEPT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What all rounds of a master work with."""

    settings: DilocoSettings
    schema: StateSchema
    optimizer: OuterOptimizer
    repository: Repository
    retry: Retry
    collector: Collector
    publisher: Publisher
    recovery: Recovery
    squasher: Squasher
    shelf: Shelf
    account: Account
    clock: Clock
    record: Recorder
    merge_time: Micros
    """What the arithmetic of a round takes in virtual time."""


class Rounds:
    """All rounds of one master, one at a time."""

    def __init__(self, opened: Opened, loop: OuterLoop, means: Means) -> None:
        self.files = opened.files
        self._loop = loop
        self._means = means
        self._settings = means.settings
        self._norms = _norms_in(opened.strings)
        self._settled: str | None = None
        self._began = means.clock.now()
        self._card_blob = git_blob_id(opened.card.to_json())

    def round(self) -> Generator[Effect, Any, bool]:
        """Look once, and merge or close when it is time. Gives whether there is a new global.

        SupersededError when another master leads.
        """
        merged = False
        try:
            merged = yield from self._round()
            if not self._loop.closed:
                yield from self._means.squasher.squash_when_due(self._loop.attendance.changes)
        except RevisionMissing as error:
            logger.info("the history moved while it was read, looking again: %s", error)
            self._settled = None
        return merged

    def _round(self) -> Generator[Effect, Any, bool]:
        means = self._means
        self._began = means.clock.now()
        commit: str = yield from means.retry.asking(means.repository.head_commit, kind="look")
        if commit != self._settled:
            return (yield from self._look(commit))
        if self._is_over():
            yield from self._close(commit)
        return False

    def _look(self, commit: str) -> Generator[Effect, Any, bool]:
        loop, means = self._loop, self._means
        entries: tuple[FileEntry, ...] = yield from means.retry.asking(
            lambda: means.repository.list_files("", commit=commit)
        )
        yield from self._check_lead(entries, commit)
        look = loop.look(entries, now=means.clock.now())
        means.collector.keep_only(deltas_in({entry.path: entry for entry in entries}))
        acceptance = Acceptance(
            schema=means.schema,
            outer_step=loop.card.outer_step,
            run_id=loop.card.run_id,
            accept_unbased=self._settings.accept_unbased,
        )
        complete = yield from means.collector.collect(look, loop, acceptance, commit=commit)
        self._refuse_stale()
        if loop.ready() and not self._all_gone() and (yield from means.publisher.await_turn(loop)):
            commit = yield from means.retry.asking(means.repository.head_commit, kind="look")
            return (yield from self._look(commit))
        merged = False
        while ready := loop.ready(self._settings.max_deltas_per_round):
            landed = yield from self._merge(ready, commit)
            if landed is None:
                return merged
            commit, merged = landed, merged or landed != commit
        self._settled = commit if complete and not merged else None
        if complete and not merged and self._is_over():
            yield from self._close(commit)
        return merged

    def _all_gone(self) -> bool:
        return self._loop.attendance.all_gone(self._means.clock.now())

    def _is_over(self) -> bool:
        return self._all_gone() and self._loop.nothing_left()

    # -- who leads ---------------------------------------------------------------------------------

    def _check_lead(
        self, entries: Sequence[FileEntry], commit: str
    ) -> Generator[Effect, Any, None]:
        """SupersededError when another master published. A publication of this one whose fate it
        could not learn is where it goes on from: the repository is the truth.
        """
        blob = next((entry.blob_id for entry in entries if entry.path == CARD_PATH), None)
        if blob == self._card_blob:
            return
        loop, means = self._loop, self._means
        found = yield from read_card(means.repository, means.retry, commit)
        if loop.is_late(found):
            raise RevisionMissing(f"{commit[:12]} is older than the last publication")
        if not loop.is_current(found):
            if found is None or not means.publisher.is_own(found, loop.card):
                raise superseded(means.repository, found)
            opened = yield from means.recovery.take_up(found, commit)
            loop.take(found, opened.ledger)
            self.files, self._norms = opened.files, _norms_in(opened.strings)
        self._card_blob = blob or ""

    # -- merging -----------------------------------------------------------------------------------

    def _refuse_stale(self) -> None:
        limit = self._settings.max_staleness
        if limit is None:
            return
        for candidate in self._loop.ready():
            age = staleness(
                outer_step=self._loop.card.outer_step,
                base_outer_step=candidate.card.base_outer_step,
            )
            if age > limit:
                reason = f"staleness {age} is above max_staleness={limit}"
                logger.warning("delta refused: %s: %s", candidate.entry.path, reason)
                self._loop.refused(candidate.entry, reason)

    def _merge(self, ready: Sequence[Candidate], commit: str) -> Generator[Effect, Any, str | None]:
        """Gives the commit that holds the new global, ``commit`` itself when nothing was left to
        merge, None when the round has to be thrown away.
        """
        loop = self._loop
        candidates = {candidate.entry.path: candidate for candidate in ready}
        composed: list[Publication] = []

        def describe(merge: Merge) -> Mapping[str, str]:
            self._refuse(merge, candidates)
            taken = [candidates[delta.path] for delta in (*merge.merged, *merge.zero)]
            composed.append(
                loop.compose(taken, counted=len(merge.merged), with_state=self._is_state_due(ready))
            )
            return self._strings(composed[-1].ledger, (*self._norms, *merge.norms))

        deltas = [self._means.collector.fetched(candidate) for candidate in ready]
        merge_time = self._means.merge_time
        done: Round = yield Compute(merge_time, lambda: self._aggregate(deltas, describe))
        if done.publication is None:
            self._refuse(done.merge, candidates)
            for delta in done.merge.zero:
                loop.refused(candidates[delta.path].entry, "it changes nothing")
            return commit
        files = done.publication
        norms = (*self._norms, *done.merge.norms)
        landed = yield from self._publish(composed[-1], commit, files.model, files.state, norms)
        if landed is not None:
            self._norms = list(norms)[-NORMS_KEPT:]
        return landed

    def _is_state_due(self, ready: Sequence[Candidate]) -> bool:
        """A peer may write another delta over one that was merged, so that is covered at once."""
        behind = len(self._loop.card.since_state) + 1
        by_peer = any(candidate.card.nonce is None for candidate in ready)
        return by_peer or behind >= self._settings.outer_state_every

    def _aggregate(self, deltas: Sequence[FetchedDelta], describe: DescribeState) -> Round:
        settings, means = self._settings, self._means
        return aggregate_and_step(
            deltas,
            previous=self.files,
            schema=means.schema,
            optimizer=means.optimizer,
            limits=NormLimits(
                absolute=settings.max_delta_norm,
                relative=settings.max_relative_norm,
                history=tuple(self._norms),
            ),
            folder=means.shelf.new(),
            model_metadata={"format": "pt"},
            describe_state=describe,
        )

    def _refuse(self, merge: Merge, candidates: Mapping[str, Candidate]) -> None:
        for delta, error in merge.rejected:
            logger.warning("delta refused: %s", error)
            self._loop.refused(candidates[delta.path].entry, error.reason)

    # -- publishing --------------------------------------------------------------------------------

    def _close(self, commit: str) -> Generator[Effect, Any, None]:
        publication = self._loop.compose([], counted=0, closing=True)
        state = restate(
            self.files,
            schema=self._means.schema,
            folder=self._means.shelf.new(),
            metadata=self._strings(publication.ledger, self._norms),
        )
        yield from self._publish(publication, commit, None, state, self._norms)

    def _publish(
        self,
        publication: Publication,
        parent: str,
        model: WrittenFile | None,
        state: WrittenFile,
        norms: Sequence[float],
    ) -> Generator[Effect, Any, str | None]:
        loop, means, base = self._loop, self._means, self._loop.card.outer_step
        sent = state if publication.with_state else None
        notes = None if sent is not None else self._strings(publication.ledger, norms)
        card = means.publisher.complete(publication, model=model, state=sent, notes=notes)
        commit = yield from means.publisher.publish(
            publication, loop, card, model=model, state=sent, parent=parent
        )
        if commit is None:
            return None
        loop.published(publication, card)
        self._card_blob = git_blob_id(card.to_json())
        self.files = GlobalFiles(
            model=model.path if model is not None else self.files.model,
            state=state.path,
            outer_step=card.outer_step,
        )
        means.collector.forget(publication.deletions)
        deltas = means.account.published(publication, base=base)
        means.record(
            "publication",
            began=self._began,
            outer_step=card.outer_step,
            commit=commit,
            model_sha256=card.model_sha256,
            deltas=deltas,
            refused=[refusal.reason for refusal in publication.refused],
            tokens_total=card.tokens_total,
            stop=card.stop,
        )
        logger.info("outer step %d: %d deltas merged", card.outer_step, len(deltas))
        return commit

    def _strings(self, ledger: Ledger, norms: Sequence[float]) -> dict[str, str]:
        return {LEDGER: ledger.to_json(), NORMS: json.dumps(list(norms)[-NORMS_KEPT:])}


def _norms_in(strings: Mapping[str, str]) -> list[float]:
    return json.loads(strings.get(NORMS, "[]"))
