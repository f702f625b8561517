"""The master's side of the protocol as a state machine without I/O, threads, clocks or tensors.

One round: `look` at a listing says what to fetch; `learned`, `claimed` and `refused` say what came
of it; `ready` orders what may be merged; `compose` turns what was merged into a publication;
`published` makes it the truth, `conflict` decides what a refused commit means. Nothing of a round
counts before `published`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ray_diloco.hub.repository import FileEntry
from ray_diloco.protocol.clock import Micros, micros
from ray_diloco.protocol.delta_card import DeltaCard
from ray_diloco.protocol.global_card import GlobalCard
from ray_diloco.protocol.ledger import Ledger
from ray_diloco.protocol.node_card import NodeCard
from ray_diloco.protocol.paths import GLOBAL_FOLDER, NODES_FOLDER, parse_delta_path
from ray_diloco.protocol.ranges import NO_STEPS, StepRanges

Key = tuple[str, str]
"""(path, blob id): one version of one file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A delta that was fetched, and whose header was read."""

    entry: FileEntry
    card: DeltaCard


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A delta whose content is wrong. ``card`` is None when not even its header could be read."""

    entry: FileEntry
    card: DeltaCard | None
    reason: str

    @property
    def covers(self) -> StepRanges:
        return (self.card.covers if self.card is not None else None) or NO_STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a listing holds that was not read yet."""

    deltas: tuple[FileEntry, ...]
    claims: tuple[FileEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What the next commit says; it counts once it has landed.

    ``card`` lacks only what the files decide: hashes, time and publication id. ``merged`` and
    ``refused`` are in ledger order; ``deletions`` also has deltas that the ledger had already.
    """

    card: GlobalCard
    ledger: Ledger
    merged: tuple[Candidate, ...]
    refused: tuple[Refusal, ...]
    deletions: tuple[FileEntry, ...]
    closing: bool = False


class OuterLoop:
    """The outer loop of one master. ``expected``: nodes to wait for before the run can be over."""

    def __init__(
        self,
        *,
        card: GlobalCard,
        ledger: Ledger,
        expected: Collection[str] = (),
        node_timeout: float,
        max_tokens: int | None = None,
        now: Micros,
    ) -> None:
        self.card = card
        self.ledger = ledger
        self._node_timeout = micros(node_timeout)
        self._max_tokens = max_tokens
        self._listing: dict[str, FileEntry] = {}
        self._cards: dict[Key, DeltaCard] = {}
        self._refusals: dict[Key, Refusal] = {}
        self._claims: dict[str, NodeCard] = {}
        self._claims_read: dict[Key, bool] = {}
        self._moved_at: dict[str, Micros] = dict.fromkeys(expected, now)
        self._gone: set[str] = set()
        self._globals: dict[str, FileEntry] = {}
        self.closed = False

    # -- reading -----------------------------------------------------------------------------------

    def look(self, entries: Iterable[FileEntry], *, now: Micros) -> Look:
        """Take the listing of the repository at one commit."""
        listing = {entry.path: entry for entry in entries}
        self._note_moves(listing, now)
        self._listing = listing
        self._globals = _globals(listing)
        return Look(
            deltas=tuple(
                entry
                for entry in self._deltas()
                if _key(entry) not in self._cards and _key(entry) not in self._refusals
            ),
            claims=tuple(
                entry
                for entry in listing.values()
                if _is_claim(entry.path) and _key(entry) not in self._claims_read
            ),
        )

    def learned(self, entry: FileEntry, card: DeltaCard) -> None:
        """A delta lies ready, its header is sound."""
        self._cards[_key(entry)] = card

    def refused(self, entry: FileEntry, reason: str) -> None:
        """A delta's content is wrong; it will be named with its reason in the next publication."""
        card = self._cards.pop(_key(entry), None)
        self._refusals[_key(entry)] = Refusal(entry=entry, card=card, reason=reason)

    def claimed(self, entry: FileEntry, claim: NodeCard | None) -> None:
        """A claim was read; None when it is not one."""
        self._claims_read[_key(entry)] = True
        if claim is not None:
            self._claims[entry.path.split("/")[1]] = claim

    # -- merging -----------------------------------------------------------------------------------

    def ready(self) -> tuple[Candidate, ...]:
        """What may be merged now, sorted by (node, step, path); a node's later deltas wait for
        its earlier.
        """
        return tuple(
            Candidate(entry=entry, card=self._cards[_key(entry)])
            for entry in self._in_order()
            if _key(entry) in self._cards and not self._is_stale(entry)
        )

    def compose(
        self, merged: Sequence[Candidate], *, counted: int, closing: bool = False
    ) -> Publication:
        """The publication after these were merged, ``counted`` of them with a weight in the mean.

        Refused and stale deltas go with it. ``closing``: it is the last one, and says why.
        """
        outer_step = self.card.outer_step + (1 if counted else 0)
        taken = {_key(candidate.entry): candidate for candidate in merged}
        ledger = self.ledger
        refused: list[Refusal] = []
        gone: list[FileEntry] = []
        for entry in self._in_order():
            key = _key(entry)
            if key in taken:
                card = taken[key].card
                ledger = ledger.merged(
                    card, path=entry.path, blob_id=entry.blob_id, outer_step=outer_step
                )
            elif key in self._refusals:
                refused.append(self._refusals[key])
                ledger = _with_refusal(ledger, self._refusals[key], outer_step)
            elif not self._is_stale(entry):
                continue
            gone.append(entry)
        ledger = self._with_departures(ledger, outer_step)
        return Publication(
            card=self._card(ledger, outer_step, merged, closing=closing),
            ledger=ledger,
            merged=tuple(merged),
            refused=tuple(refused),
            deletions=tuple(gone),
            closing=closing,
        )

    def _with_departures(self, ledger: Ledger, outer_step: int) -> Ledger:
        for node_id, claim in self._claims.items():
            row = ledger.rows.get(node_id)
            if claim.state == "done" and not (row and row.done and row.nonce == claim.nonce):
                ledger = ledger.done(node_id, claim.nonce, outer_step=outer_step)
        return ledger

    def _card(
        self, ledger: Ledger, outer_step: int, merged: Sequence[Candidate], *, closing: bool
    ) -> GlobalCard:
        stop = self.card.stop
        if stop is None and self._max_tokens and ledger.tokens_total >= self._max_tokens:
            stop = f"run.max_tokens={self._max_tokens} reached"
        if stop is None and closing:
            stop = "every node is done"
        return replace(
            self.card,
            outer_step=outer_step,
            bootstrap=outer_step == 0 and self.card.bootstrap,
            round=tuple(candidate.card.identity for candidate in merged),
            nodes=ledger.rows,
            tokens_total=ledger.tokens_total,
            stop=stop,
        )

    # -- the commit --------------------------------------------------------------------------------

    def published(self, publication: Publication, card: GlobalCard) -> None:
        """The publication is the truth now, with this card."""
        self.card = card
        self.ledger = publication.ledger
        for entry in publication.deletions:
            self._cards.pop(_key(entry), None)
            self._refusals.pop(_key(entry), None)
            self._listing.pop(entry.path, None)
        self.closed = self.closed or publication.closing

    def conflict(
        self, publication: Publication, entries: Iterable[FileEntry]
    ) -> Literal["retry", "discard", "superseded"]:
        """What a refused commit means, from the listing at the new tip.

        ``retry``: only files under nodes/ that we do not delete have changed, so the same round may
        follow the new tip. ``discard``: a file that we would delete has changed. ``superseded``:
        another master lives.
        """
        listing = {entry.path: entry for entry in entries}
        if _globals(listing) != self._globals:
            return "superseded"
        same = all(listing.get(entry.path, entry) == entry for entry in publication.deletions)
        return "retry" if same else "discard"

    # -- the end -----------------------------------------------------------------------------------

    def all_gone(self, now: Micros) -> bool:
        """Every node that is expected or known has said that it is done, or has long been
        silent.
        """
        return bool(self._moved_at) and all(
            self._is_done(node_id) or now - moved >= self._node_timeout
            for node_id, moved in self._moved_at.items()
        )

    def forget(self, node_id: str) -> None:
        """Whoever runs this node knows that it has ended, well or not: do not wait for it."""
        self._gone.add(node_id)

    def next_silence(self) -> Micros | None:
        """When the first node that is not done counts as gone, unless it moves before; None when
        all are done.
        """
        waiting = [at for node_id, at in self._moved_at.items() if not self._is_done(node_id)]
        return Micros(min(waiting) + self._node_timeout) if waiting else None

    def nothing_left(self) -> bool:
        """Every delta of the last listing was merged before, or is refused."""
        return all(
            _key(entry) in self._refusals or self._is_stale(entry) for entry in self._deltas()
        )

    def _is_done(self, node_id: str) -> bool:
        claim = self._claims.get(node_id)
        return node_id in self._gone or (claim is not None and claim.state == "done")

    # -- inside ------------------------------------------------------------------------------------

    def _deltas(self) -> Iterable[FileEntry]:
        found = [
            (where.node_id, where.local_step, path, entry)
            for path, entry in self._listing.items()
            if (where := parse_delta_path(path)) is not None
        ]
        return [entry for *_, entry in sorted(found, key=lambda item: item[:3])]

    def _in_order(self) -> list[FileEntry]:
        """Deltas that were read, up to the first of each node that was not."""
        blocked: set[str] = set()
        order: list[FileEntry] = []
        for entry in self._deltas():
            node_id = entry.path.split("/")[1]
            if _key(entry) not in self._cards and _key(entry) not in self._refusals:
                blocked.add(node_id)
            if node_id not in blocked:
                order.append(entry)
        return order

    def _is_stale(self, entry: FileEntry) -> bool:
        card = self._cards.get(_key(entry))
        return card is not None and self.ledger.has(card, path=entry.path, blob_id=entry.blob_id)

    def _note_moves(self, listing: Mapping[str, FileEntry], now: Micros) -> None:
        for path, entry in listing.items():
            parts = path.split("/")
            if parts[0] == NODES_FOLDER and len(parts) == 3 and self._listing.get(path) != entry:
                self._moved_at[parts[1]] = now


def _key(entry: FileEntry) -> Key:
    return (entry.path, entry.blob_id)


def _globals(listing: Mapping[str, FileEntry]) -> dict[str, FileEntry]:
    return {path: entry for path, entry in listing.items() if path.startswith(f"{GLOBAL_FOLDER}/")}


def _is_claim(path: str) -> bool:
    parts = path.split("/")
    return len(parts) == 3 and parts[0] == NODES_FOLDER and parts[2] == "node.json"


def _with_refusal(ledger: Ledger, refusal: Refusal, outer_step: int) -> Ledger:
    where = parse_delta_path(refusal.entry.path)
    assert where is not None  # only deltas are refused
    return ledger.rejected(
        where.node_id,
        refusal.card.nonce if refusal.card is not None else None,
        where.local_step,
        covers=refusal.covers,
        reason=refusal.reason,
        path=refusal.entry.path,
        blob_id=refusal.entry.blob_id,
        outer_step=outer_step,
    )
