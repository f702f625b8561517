"""Getting what a listing names: node deltas, checked as files, and claims."""

import hashlib
import logging
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

from ray_diloco.errors import (
    ContentError,
    DeltaError,
    EntryMissing,
    RevisionMissing,
    SafetensorsError,
    TransientHubError,
)
from ray_diloco.hub.digest import sha256_of
from ray_diloco.hub.patience import Retry
from ray_diloco.hub.repository import FileEntry, Repository
from ray_diloco.hub.signature import Trust
from ray_diloco.master.aggregation import FetchedDelta
from ray_diloco.master.listing import Look, key_of
from ray_diloco.master.outer_loop import OuterLoop
from ray_diloco.master.publication import Candidate
from ray_diloco.master.validation import Acceptance, card_in, check_file
from ray_diloco.protocol.clock import Effect, Transfer
from ray_diloco.protocol.node_card import NodeCard
from ray_diloco.tensors.safetensors_reader import read_header
from ray_diloco.tensors.schema import StateSchema

logger = logging.getLogger(__name__)

CLAIM_LIMIT = 64 * 1024
HEADER_ROOM = 16 * 1024 * 1024
"""Bytes that a delta's header may take on top of its numbers."""


class Collector:
    """Keeps each fetched delta under path and blob id until it is forgotten: nothing is fetched
    twice, and two files of equal bytes are two files.
    """

    def __init__(
        self, repository: Repository, retry: Retry, folder: Path, *, trust: Trust | None = None
    ) -> None:
        """``trust``: whose deltas are taken; None: everybody's."""
        self._repository = repository
        self._trust = trust
        self._retry = retry
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def collect(
        self, look: Look, loop: OuterLoop, acceptance: Acceptance, *, commit: str
    ) -> Generator[Effect, Any, bool]:
        """Fetch what is new and tell the loop. Gives whether everything could be fetched."""
        complete = True
        for path in look.strays:
            logger.warning("%s is ignored: it is not the path of a delta or a claim", path)
        for entry in look.claims:
            loop.claimed(entry, (yield from self._claim(entry, commit)))
        for entry in look.deltas:
            try:
                yield from self._delta(entry, loop, acceptance, commit)
            except (EntryMissing, RevisionMissing, TransientHubError) as error:
                logger.warning("%s was not fetched: %s", entry.path, error)
                complete = False
        return complete

    def fetched(self, candidate: Candidate) -> FetchedDelta:
        """A candidate as the merge reads it."""
        entry = candidate.entry
        return FetchedDelta(path=entry.path, file=self._place(entry), card=candidate.card)

    def forget(self, entries: tuple[FileEntry, ...]) -> None:
        """Delete local copies."""
        for entry in entries:
            self._place(entry).unlink(missing_ok=True)

    def keep_only(self, entries: Iterable[FileEntry]) -> None:
        """Delete what belongs to none of these, half a download included."""
        kept = {self._place(entry) for entry in entries}
        for file in self._folder.iterdir():
            if file not in kept:
                file.unlink(missing_ok=True)

    def fetch(self, entry: FileEntry, commit: str) -> Generator[Effect, Any, Path]:
        """The local copy of a file, fetched unless it is there and is what was listed."""
        place = self._place(entry)
        if not _is_there(place, entry):
            yield from self._retry.asking(
                lambda: self._repository.fetch(
                    entry.path,
                    commit=commit,
                    destination=place,
                    size=entry.size,
                    sha256=entry.sha256,
                ),
            )
            yield Transfer("down", entry.size)
        return place

    def _place(self, entry: FileEntry) -> Path:
        name = hashlib.sha256("\0".join(key_of(entry)).encode()).hexdigest()
        return self._folder / f"{name}.safetensors"

    def _claim(self, entry: FileEntry, commit: str) -> Generator[Effect, Any, NodeCard | None]:
        try:
            data = yield from self._retry.asking(
                lambda: self._repository.read(entry.path, commit=commit, limit=CLAIM_LIMIT),
            )
            return NodeCard.from_json(data, path=entry.path)
        except ContentError as error:
            logger.warning("%s", error)
            return None

    def _delta(
        self, entry: FileEntry, loop: OuterLoop, acceptance: Acceptance, commit: str
    ) -> Generator[Effect, Any, None]:
        try:
            _check_size(entry, acceptance.schema)
            place = yield from self.fetch(entry, commit)
            self._check_signature(place, entry.path)
            loop.learned(entry, card_in(place, path=entry.path))
            check_file(place, path=entry.path, acceptance=acceptance)
        except DeltaError as error:
            logger.warning("delta refused: %s", error)
            loop.refused(entry, error.reason)
            self.forget((entry,))

    def _check_signature(self, place: Path, path: str) -> None:
        """DeltaError unless a trusted key signed what the delta says, the hash of its payload among
        it. Before anything of that counts: it may be said in the name of another.
        """
        if self._trust is None:
            return
        try:
            objection = self._trust.objection_to_header(read_header(place).metadata)
        except SafetensorsError as error:
            objection = str(error)
        if objection is not None:
            raise DeltaError(path, objection)


def _is_there(place: Path, entry: FileEntry) -> bool:
    """Whether a copy from before a restart is the listed file."""
    if entry.sha256 is None or not place.exists() or place.stat().st_size != entry.size:
        return False
    return sha256_of(place) == entry.sha256


def _check_size(entry: FileEntry, schema: StateSchema) -> None:
    limit = 8 * sum(each.numbers for each in schema.floating) + HEADER_ROOM
    if entry.size > limit:
        raise DeltaError(
            entry.path, f"{entry.size} bytes, more than a delta of this model can have"
        )
