"""Rounds: from a listing to a publication, and the files that the next round starts from."""

import logging
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from ray_diloco.errors import RevisionMissing
from ray_diloco.hub.cards import read_card
from ray_diloco.hub.digest import git_blob_id
from ray_diloco.hub.repository import FileEntry
from ray_diloco.master.aggregation import FetchedDelta
from ray_diloco.master.listing import deltas_in
from ray_diloco.master.means import Means
from ray_diloco.master.merging import merge_at
from ray_diloco.master.outer_loop import OuterLoop
from ray_diloco.master.outer_state import GlobalFiles
from ray_diloco.master.publication import Candidate, Publication
from ray_diloco.master.publishing import NO_PARTS, Parts, superseded
from ray_diloco.master.recovery import Opened
from ray_diloco.master.round_files import DescribeState, Merge, Round, aggregate_and_step, restate
from ray_diloco.master.round_memory import Memory
from ray_diloco.master.validation import Acceptance, NormLimits
from ray_diloco.protocol.clock import Compute, Effect, Micros, micros
from ray_diloco.protocol.paths import CARD_PATH
from ray_diloco.protocol.staleness import staleness
from ray_diloco.tensors.safetensors_writer import WrittenFile

logger = logging.getLogger(__name__)


class Rounds:
    """All rounds of one master, one at a time."""

    def __init__(self, opened: Opened, loop: OuterLoop, means: Means) -> None:
        self.files = opened.files
        self._loop = loop
        self._means = means
        self._settings = means.settings
        self._memory = Memory.from_strings(opened.strings)
        self._settled: str | None = None
        self._merge_due: Micros | None = None
        self._next_refusals = Micros(0)
        self._began = means.clock.now()
        self._card_blob = git_blob_id(opened.card.to_json())

    @property
    def next_merge(self) -> Micros | None:
        """When what waits is merged even if nothing new comes; None: nothing waits for a time."""
        due = self._merge_due
        return due if due is not None and due > self._means.clock.now() else None

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
        if commit != self._settled or self._is_time():
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
            fragments=self._settings.fragments,
        )
        complete = yield from means.collector.collect(look, loop, acceptance, commit=commit)
        self._refuse_stale()
        self._tell_refusals()
        due = self._is_time()
        if due and not self._all_gone() and (yield from means.publisher.await_turn(loop)):
            commit = yield from means.retry.asking(means.repository.head_commit, kind="look")
            return (yield from self._look(commit))
        merged = False
        while due and (ready := loop.ready(self._settings.max_deltas_per_round)):
            landed = yield from self._merge(ready, commit)
            if landed is None:
                return merged
            commit, merged = landed, merged or landed != commit
        self._settled = commit if complete and not merged else None
        if complete and not merged and self._is_over():
            yield from self._close(commit)
        elif not merged:
            yield from self._publish_refusals(commit)
        return merged

    def _is_time(self) -> bool:
        """Whether what waits is to be merged now."""
        now = self._means.clock.now()
        due = self._merge_due = merge_at(self._settings, self._loop.waiting(now=now), now=now)
        return due is not None and due <= now

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
            self.files, self._memory = opened.files, Memory.from_strings(opened.strings)
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
        nodes = self._live_nodes(ready)
        with_state = self._is_state_due(ready)
        live_nodes = self._live_nodes_after(nodes, with_state=with_state)

        def describe(merge: Merge) -> Mapping[str, str]:
            self._refuse(merge, candidates)
            taken = [candidates[delta.path] for delta in (*merge.merged, *merge.zero)]
            composed.append(loop.compose(taken, counted=len(merge.merged), with_state=with_state))
            memory = self._memory.after(merge.norms, live_nodes=live_nodes)
            return memory.strings(composed[-1].ledger)

        deltas = [self._means.collector.fetched(candidate) for candidate in ready]
        merge_time = self._means.merge_time
        done: Round = yield Compute(merge_time, lambda: self._aggregate(deltas, describe, nodes))
        if done.publication is None:
            self._refuse(done.merge, candidates)
            for delta in done.merge.zero:
                loop.refused(candidates[delta.path].entry, "it changes nothing")
            self._tell_refusals()
            return commit
        self._tell_refusals()
        files = done.publication
        memory = self._memory.after(done.merge.norms, live_nodes=live_nodes)
        landed = yield from self._publish(
            composed[-1], commit, files.model, files.state, memory, files.parts
        )
        if landed is not None:
            self._memory = memory
            self._means.account.aggregated(done.merge.aggregation, asked=self._settings.aggregation)
        return landed

    def _live_nodes(self, ready: Sequence[Candidate]) -> int:
        """How many nodes live, those that sent what is merged among them."""
        now = self._means.clock.now()
        silences = self._loop.attendance.silences()
        live = {node_id for node_id, silent_at in silences.items() if silent_at > now}
        return len(live | {candidate.card.node_id for candidate in ready})

    def _live_nodes_after(self, nodes: int, *, with_state: bool) -> tuple[int, ...]:
        """What a replay of the rounds that no state covers would have to know."""
        if with_state or self._settings.divide != "nodes":
            return ()
        return (*self._memory.live_nodes, nodes)

    def _is_state_due(self, ready: Sequence[Candidate]) -> bool:
        """A peer may write another delta over one that was merged, so that is covered at once."""
        behind = len(self._loop.card.since_state) + 1
        by_peer = any(candidate.card.nonce is None for candidate in ready)
        return by_peer or behind >= self._settings.outer_state_every

    def _aggregate(
        self, deltas: Sequence[FetchedDelta], describe: DescribeState, nodes: int
    ) -> Round:
        settings, means = self._settings, self._means
        return aggregate_and_step(
            deltas,
            previous=self.files,
            schema=means.schema,
            optimizer=means.optimizer,
            limits=NormLimits(
                absolute=settings.max_delta_norm,
                relative=settings.max_relative_norm,
                history=self._memory.norms,
            ),
            folder=means.shelf.new(),
            model_metadata={"format": "pt"},
            describe_state=describe,
            spare=means.shelf.take_spare(),
            settings=settings,
            nodes=nodes,
        )

    def _refuse(self, merge: Merge, candidates: Mapping[str, Candidate]) -> None:
        for delta, error in merge.rejected:
            logger.warning("delta refused: %s", error)
            self._loop.refused(candidates[delta.path].entry, error.reason)

    # -- publishing --------------------------------------------------------------------------------

    def _tell_refusals(self) -> None:
        """To whoever follows the run, at once; a delta's node hears of it from a publication."""
        for refusal in self._loop.new_refusals():
            self._means.record("delta_rejected", **self._means.account.refused(refusal))

    def _publish_refusals(self, commit: str) -> Generator[Effect, Any, None]:
        """Nothing can be merged: tell the nodes with an unchanged global why, at most once in a
        `poll_interval`.
        """
        means, publication = self._means, self._loop.compose([], counted=0)
        if not publication.refused:
            return
        self._settled = None
        now = means.clock.now()
        if now < self._next_refusals:
            return
        if not (yield from means.publisher.await_turn(self._loop)):
            self._next_refusals = Micros(now + micros(self._settings.poll_interval))
            yield from self._publish_unchanged(publication, commit)

    def _close(self, commit: str) -> Generator[Effect, Any, None]:
        yield from self._publish_unchanged(self._loop.compose([], counted=0, closing=True), commit)

    def _publish_unchanged(
        self, publication: Publication, commit: str
    ) -> Generator[Effect, Any, None]:
        """The weights as they are, with what there is to say."""
        memory = self._memory.after(())
        state = restate(
            self.files,
            schema=self._means.schema,
            folder=self._means.shelf.new(),
            metadata=memory.strings(publication.ledger),
        )
        if (yield from self._publish(publication, commit, None, state, memory)) is not None:
            self._memory = memory

    def _publish(
        self,
        publication: Publication,
        parent: str,
        model: WrittenFile | None,
        state: WrittenFile,
        memory: Memory,
        parts: Parts = NO_PARTS,
    ) -> Generator[Effect, Any, str | None]:
        loop, means, base = self._loop, self._means, self._loop.card.outer_step
        sent = state if publication.with_state else None
        notes = None if sent is not None else memory.strings(publication.ledger)
        card = means.publisher.complete(
            publication, model=model, state=sent, notes=notes, parts=parts
        )
        commit = yield from means.publisher.publish(
            publication, loop, card, model=model, state=sent, parent=parent, parts=parts
        )
        if commit is None:
            return None
        now = means.clock.now()
        waited = [loop.waited(candidate, now=now) for candidate in publication.merged]
        loop.published(publication, card)
        self._card_blob = git_blob_id(card.to_json())
        self.files = GlobalFiles(
            model=model.path if model is not None else self.files.model,
            state=state.path,
            outer_step=card.outer_step,
        )
        means.collector.forget(publication.deletions)
        deltas = means.account.published(publication, base=base, waited=waited)
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
        if deltas or card.stop is None:
            logger.info("outer step %d: %d deltas merged", card.outer_step, len(deltas))
        if card.stop is not None:
            logger.info("outer step %d is the last: %s", card.outer_step, card.stop)
        return commit
