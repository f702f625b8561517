"""A global with its outer state from the repository, which is the truth; local files are a cache.

With `outer_state_every` above 1 the outer state may be some rounds behind the model. What it holds
follows from the deltas of those rounds, which are still there: momentum, float32 copies and
statistics do not depend on parameters that the model file keeps in full.
"""

import logging
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray_diloco.errors import DeltaError, EntryMissing, GlobalError
from ray_diloco.hub.patience import Retry
from ray_diloco.hub.repository import FileEntry, Repository
from ray_diloco.hub.signature import Trust
from ray_diloco.master.aggregation import FetchedDelta
from ray_diloco.master.collecting import Collector
from ray_diloco.master.outer_optimizer import OuterOptimizer
from ray_diloco.master.outer_state import GlobalFiles
from ray_diloco.master.round_files import aggregate_and_step
from ray_diloco.master.round_memory import LEDGER, Memory
from ray_diloco.master.shelf import Shelf
from ray_diloco.master.validation import Acceptance, NormLimits, check_file
from ray_diloco.protocol.clock import Compute, Effect, Micros, Transfer
from ray_diloco.protocol.delta_card import Identity
from ray_diloco.protocol.global_card import GlobalCard
from ray_diloco.protocol.ledger import Ledger
from ray_diloco.protocol.paths import CARD_PATH, delta_path
from ray_diloco.protocol.settings import DilocoSettings
from ray_diloco.tensors.schema import StateSchema

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A published global and what the next round needs of it. ``strings``: of the outer state."""

    card: GlobalCard
    files: GlobalFiles
    ledger: Ledger
    strings: Mapping[str, str]
    commit: str


class Recovery:
    """How a master takes up what is published."""

    def __init__(
        self,
        repository: Repository,
        retry: Retry,
        *,
        settings: DilocoSettings,
        schema: StateSchema,
        optimizer: OuterOptimizer,
        shelf: Shelf,
        collector: Collector,
        trust: Trust | None = None,
    ) -> None:
        """``trust``: whose globals are taken up; None: everybody's."""
        self._repository = repository
        self._trust = trust
        self._retry = retry
        self._settings = settings
        self._schema = schema
        self._optimizer = optimizer
        self._shelf = shelf
        self._collector = collector

    def take_up(self, card: GlobalCard, commit: str) -> Generator[Effect, Any, Opened]:
        """Fetch a global with its outer state, brought up to it. GlobalError when they are not what
        the card says, or not of somebody trusted.
        """
        objection = self._trust.objection_to_card(card) if self._trust is not None else None
        if objection is not None:
            raise GlobalError(f"{CARD_PATH}: {objection}")
        if card.state_file is None:
            raise GlobalError(f"{CARD_PATH} names no outer state")
        folder = self._shelf.new()
        files = GlobalFiles(
            model=folder / "latest.safetensors",
            state=folder / "outer_state.safetensors",
            outer_step=card.outer_step - len(card.since_state),
        )
        assert files.state is not None
        yield from self._fetch(card.model_file, files.model, card.model_sha256, commit)
        yield from self._fetch(card.state_file, files.state, card.state_sha256, commit)
        self._schema.check({entry.name: entry for entry in files.schema()})
        if card.since_state:
            files = yield from self._replay(card, files, commit)
        strings = files.state_metadata()
        ledger = Ledger.from_json(strings.get(LEDGER, ""), rows=card.nodes)
        return Opened(card=card, files=files, ledger=ledger, strings=strings, commit=commit)

    def _fetch(
        self, path: str, place: Path, sha256: str | None, commit: str
    ) -> Generator[Effect, Any, None]:
        try:
            yield from self._retry.asking(
                lambda: self._repository.fetch(
                    path, commit=commit, destination=place, sha256=sha256
                )
            )
        except EntryMissing:
            raise GlobalError(f"{CARD_PATH} names {path}, which is not there") from None
        yield Transfer("down", place.stat().st_size)

    def _replay(
        self, card: GlobalCard, files: GlobalFiles, commit: str
    ) -> Generator[Effect, Any, GlobalFiles]:
        """Bring the outer state up to the model, round by round."""
        logger.info(
            "replaying %d rounds up to outer step %d", len(card.since_state), card.outer_step
        )
        entries = yield from self._retry.asking(
            lambda: self._repository.list_files("nodes", commit=commit)
        )
        listing = {entry.path: entry for entry in entries}
        acceptance = Acceptance(
            schema=self._schema,
            outer_step=card.outer_step,
            accept_unbased=True,
            fragments=self._settings.fragments,
        )
        live_nodes = iter(Memory.from_strings(card.state_notes).live_nodes)
        for merged in card.since_state:
            nodes = next(live_nodes, 1)
            deltas: list[FetchedDelta] = []
            for identity in merged:
                deltas.append((yield from self._delta(identity, listing, acceptance, commit)))
            files = yield Compute(
                Micros(0), lambda d=deltas, f=files, n=nodes: self._again(d, f, card, n)
            )
        return files

    def _delta(
        self,
        identity: Identity,
        listing: Mapping[str, FileEntry],
        acceptance: Acceptance,
        commit: str,
    ) -> Generator[Effect, Any, FetchedDelta]:
        """A delta that was merged before, checked as it was then."""
        path = delta_path(identity.node_id, identity.local_step)
        if path not in listing:
            raise GlobalError(f"{path} is gone: {CARD_PATH} says that no outer state covers it yet")
        file = yield from self._collector.fetch(listing[path], commit)
        try:
            found = check_file(file, path=path, acceptance=acceptance)
        except DeltaError as error:
            raise GlobalError(f"{path} was merged, but now {error.reason}") from None
        if found.identity != identity:
            raise GlobalError(f"{path} is not the delta that was merged")
        return FetchedDelta(path=path, file=file, card=found)

    def _again(
        self, deltas: Sequence[FetchedDelta], files: GlobalFiles, card: GlobalCard, nodes: int
    ) -> GlobalFiles:
        done = aggregate_and_step(
            deltas,
            previous=files,
            schema=self._schema,
            optimizer=self._optimizer,
            limits=NormLimits(),
            folder=self._shelf.new(),
            model_metadata={"format": "pt"},
            describe_state=lambda _: card.state_notes,
            settings=self._settings,
            nodes=nodes,
        )
        if done.publication is None or done.merge.rejected:
            raise GlobalError("a delta that was merged is not what it was")
        return GlobalFiles(
            model=files.model, state=done.publication.state.path, outer_step=files.outer_step + 1
        )
