"""Making a publication the truth: blobs first, then one commit that names its parent."""

import hashlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from ray_diloco.errors import (
    HubError,
    ParentConflict,
    QuotaExceeded,
    TransientHubError,
    UsageError,
)
from ray_diloco.hub.cards import read_card
from ray_diloco.hub.limits import Share, master_share
from ray_diloco.hub.patience import Retry
from ray_diloco.hub.repository import Addition, Repository
from ray_diloco.hub.signature import Signer
from ray_diloco.master.outer_loop import OuterLoop
from ray_diloco.master.publication import Publication
from ray_diloco.protocol.clock import Access, Clock, Effect, Sleep, Transfer
from ray_diloco.protocol.global_card import GlobalCard
from ray_diloco.protocol.paths import CARD_PATH, MODEL_PATH, STATE_PATH, fragment_path
from ray_diloco.tensors.safetensors_writer import WrittenFile

MOST_CONFLICTS = 8
"""Tries of one publication on a branch that keeps moving, before the next round takes over."""

Parts = Mapping[int, WrittenFile]
"""By fragment, its file."""
NO_PARTS: Parts = {}

Fate = Literal["landed", "retry", "discard", "late"]


class SupersededError(UsageError):
    """Another master leads this run now."""


def superseded(repository: Repository, found: GlobalCard | None) -> SupersededError:
    """The error that says who leads."""
    other = found.master_id if found is not None else None
    return SupersededError(
        f"{repository.repo_id} is led by another master now ({other!r}); "
        "this one stops and has changed nothing"
    )


class Publisher:
    """One incarnation of a master: its commits."""

    def __init__(
        self,
        repository: Repository,
        retry: Retry,
        clock: Clock,
        *,
        master_id: str,
        commits_per_hour: int | None = None,
        signer: Signer | None = None,
    ) -> None:
        """``commits_per_hour``: of all participants; None: nobody counts. ``signer``: of
        globals.
        """
        self._signer = signer
        self._repository = repository
        self._retry = retry
        self._clock = clock
        self._master_id = master_id
        self._started = clock.utc()
        self._share = Share(clock, commits_per_hour, master_share)
        self.conflicts = 0

    def complete(
        self,
        publication: Publication,
        *,
        model: WrittenFile | None,
        state: WrittenFile | None,
        notes: Mapping[str, str] | None = None,
        parts: Parts = NO_PARTS,
    ) -> GlobalCard:
        """The card with what only the files decide; a file that is None stays as it is. ``notes``:
        what the state would say, of a publication without it. ``parts``: fragments that changed.

        Its id is of this incarnation alone: two masters that publish the same do not take each
        other's for their own.
        """
        card = replace(publication.card, master_id=self._master_id, updated_at=self._clock.utc())
        if model is not None:
            card = replace(card, model_file=MODEL_PATH, model_sha256=model.sha256)
        if state is not None:
            card = replace(card, state_file=STATE_PATH, state_sha256=state.sha256)
        if parts:
            hashes = list(card.fragment_sha256 or [""] * len(card.fragment_steps))
            for fragment, file in parts.items():
                hashes[fragment] = file.sha256
            card = replace(card, fragment_sha256=tuple(hashes))
        if notes is not None:
            card = replace(card, state_notes=notes)
        card = replace(card, signed_by=None, signature=None)
        named = replace(card, publication_id=self._started, updated_at="")
        card = replace(card, publication_id=hashlib.sha256(named.to_json()).hexdigest()[:32])
        return self._signer.signed_card(card) if self._signer is not None else card

    def await_turn(self, loop: OuterLoop) -> Generator[Effect, Any, bool]:
        """Wait until the master's share of the commit budget has room for a publication, or an
        interruption; gives whether it waited, so that there may be more to publish.
        """
        self._share.heed(sum(not row.done for row in loop.card.nodes.values()))
        wait = self._share.wait()
        if wait:
            yield Sleep(wait)
        return wait > 0

    def spend(self) -> None:
        """A commit of the master was sent."""
        self._share.spend()

    def publish(
        self,
        publication: Publication,
        loop: OuterLoop,
        card: GlobalCard,
        *,
        model: WrittenFile | None,
        state: WrittenFile | None,
        parent: str,
        parts: Parts = NO_PARTS,
    ) -> Generator[Effect, Any, str | None]:
        """Commit until it has landed; gives the commit. None when this round must be thrown away.

        SupersededError when another publication is there, RevisionMissing or TransientHubError when
        its fate could not be learned: the next look will show it.
        """
        files = _files(model, state, parts)
        additions = [
            Addition(path=CARD_PATH, source=card.to_json()),
            *(Addition(path=p, source=f.path, sha256=f.sha256) for p, f in files.items()),
        ]
        yield Transfer("up", sum(file.size for file in files.values()))
        yield from self._retry.asking(lambda: self._repository.stage(additions))
        attempt, conflicts = 0, 0
        while conflicts < MOST_CONFLICTS:
            try:
                commit = yield Access(lambda: self._commit(card, publication, additions, parent))  # noqa: B023 - called at once
                self.spend()
                return commit
            except ParentConflict:
                conflicts += 1
                self.conflicts += 1
            except (QuotaExceeded, TransientHubError) as error:
                self._retry.note(error)
                yield Sleep(self._wait_after(error, attempt))
                attempt += 1
            parent, fate = yield from self._learn(publication, loop, card)
            if fate == "landed":
                self.spend()
                return parent
            if fate == "discard":
                return None
        return None

    def _wait_after(self, error: HubError, attempt: int) -> Any:
        if isinstance(error, QuotaExceeded):
            return self._retry.quota_delay(error)
        return self._retry.delay(attempt)

    def _commit(
        self, card: GlobalCard, publication: Publication, additions: Sequence[Addition], parent: str
    ) -> str:
        return self._repository.commit(
            f"outer step {card.outer_step}: {len(publication.merged)} deltas",
            additions=additions,
            deletions=[entry.path for entry in publication.deletions],
            parent=parent,
        )

    def _learn(
        self, publication: Publication, loop: OuterLoop, card: GlobalCard
    ) -> Generator[Effect, Any, tuple[str, Fate]]:
        """The tip, and what it says of the publication. A lookup that lags is made again, for as
        long as a call is tried.
        """
        deadline, attempt = self._clock.now() + self._retry.deadline, 0
        while True:
            parent = yield from self._retry.asking(self._repository.head_commit, kind="look")
            fate = yield from self._fate(publication, loop, card, parent)
            if fate != "late":
                return parent, fate
            if self._clock.now() >= deadline:
                raise TransientHubError(
                    f"{self._repository.repo_id} shows an older global than it has taken"
                )
            yield Sleep(self._retry.delay(attempt))
            attempt += 1

    def _fate(
        self, publication: Publication, loop: OuterLoop, card: GlobalCard, commit: str
    ) -> Generator[Effect, Any, Fate]:
        found = yield from read_card(self._repository, self._retry, commit)
        if found is not None and found.publication_id == card.publication_id:
            return "landed"
        if loop.is_late(found):
            return "late"
        entries = yield from self._retry.asking(
            lambda: self._repository.list_files("", commit=commit)
        )
        verdict = loop.conflict(publication, entries, found)
        if verdict != "superseded":
            return verdict
        if self.is_own(found, loop.card):
            return "discard"
        raise superseded(self._repository, found)

    def is_own(self, found: GlobalCard | None, card: GlobalCard) -> bool:
        """Whether this incarnation published what was found: each takes an epoch of its own. Not
        the card that it goes on from, then one whose fate it could not learn.
        """
        return (
            found is not None
            and found.publication_id is not None
            and (found.master_id, found.master_epoch) == (self._master_id, card.master_epoch)
        )


def _files(
    model: WrittenFile | None, state: WrittenFile | None, parts: Parts
) -> dict[str, WrittenFile]:
    """By path, what changes beside the card."""
    whole = {MODEL_PATH: model, STATE_PATH: state}
    cut = {fragment_path(fragment): file for fragment, file in parts.items()}
    return {path: file for path, file in whole.items() if file is not None} | cut
