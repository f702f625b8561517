"""The master's side of the protocol as a state machine without I/O, threads, clocks or tensors.

One round: `look` at a listing says what to fetch; `learned`, `claimed` and `refused` say what came
of it; `ready` orders what may be merged; `compose` turns what was merged into a publication;
`published` makes it the truth, `conflict` decides what a refused commit means. Nothing of a round
counts before `published`.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Literal

from ray_diloco.hub.repository import FileEntry
from ray_diloco.master.attendance import Attendance
from ray_diloco.master.listing import (
    Key,
    Look,
    deltas_in,
    key_of,
    strays_in,
)
from ray_diloco.master.merging import Waiting
from ray_diloco.master.publication import Candidate, Publication, Refusal
from ray_diloco.protocol.clock import Micros, micros
from ray_diloco.protocol.delta_card import DeltaCard
from ray_diloco.protocol.global_card import GlobalCard
from ray_diloco.protocol.ledger import Ledger
from ray_diloco.protocol.node_card import NodeCard
from ray_diloco.protocol.paths import parse_delta_path


class OuterLoop:
    """The outer loop of one master. ``expected``, ``anew``, ``began``: see `Attendance`;
    ``keep_merged``: outer steps for which merged deltas stay.
    """

    def __init__(
        self,
        *,
        card: GlobalCard,
        ledger: Ledger,
        expected: Collection[str] = (),
        anew: bool = False,
        began: str | None = None,
        node_timeout: float = 1.0,
        max_tokens: int | None = None,
        keep_merged: int = 0,
        now: Micros,
    ) -> None:
        self.card = card
        self.ledger = ledger
        self.closed = card.closed
        self.attendance = Attendance(
            expected, node_timeout=micros(node_timeout), anew=anew, began=began, now=now
        )
        self._max_tokens = max_tokens
        self._keep_merged = keep_merged
        self._looked_at = now
        self._listing: dict[str, FileEntry] = {}
        self._cards: dict[Key, DeltaCard] = {}
        self._arrived_at: dict[Key, Micros] = {}
        self._refusals: dict[Key, Refusal] = {}
        self._new_refusals: list[Refusal] = []
        self._merged_at: dict[Key, int] = {}
        self._strays: set[str] = set()

    # -- reading -----------------------------------------------------------------------------------

    def look(self, entries: Iterable[FileEntry], *, now: Micros) -> Look:
        """Take the listing of the repository at one commit."""
        listing = {entry.path: entry for entry in entries}
        self.attendance.note(self._listing, listing, now)
        self._listing, self._looked_at = listing, now
        listed = {key_of(entry) for entry in listing.values()}
        self._cards = {key: card for key, card in self._cards.items() if key in listed}
        self._arrived_at = {key: at for key, at in self._arrived_at.items() if key in listed}
        strays = [path for path in strays_in(listing) if path not in self._strays]
        self._strays.update(strays)
        return Look(
            deltas=tuple(entry for entry in deltas_in(listing) if not self._is_read(entry)),
            claims=self.attendance.unread(listing),
            strays=tuple(strays),
        )

    def learned(self, entry: FileEntry, card: DeltaCard) -> None:
        """A delta lies ready, its header is sound."""
        self._cards[key_of(entry)] = card
        self._arrived_at.setdefault(key_of(entry), self._looked_at)

    def refused(self, entry: FileEntry, reason: str) -> None:
        """A delta's content is wrong; it will be named with its reason in the next publication."""
        card = self._cards.pop(key_of(entry), None)
        refusal = self._refusals[key_of(entry)] = Refusal(entry=entry, card=card, reason=reason)
        self._new_refusals.append(refusal)

    def new_refusals(self) -> list[Refusal]:
        """Those since the last call."""
        told, self._new_refusals = self._new_refusals, []
        return told

    def claimed(self, entry: FileEntry, claim: NodeCard | None) -> None:
        """A claim was read; None when it is not one."""
        self.attendance.claimed(entry, claim)

    # -- merging -----------------------------------------------------------------------------------

    def waiting(self, *, now: Micros) -> Waiting:
        """What waits to be merged, and for whom it may wait."""
        ready = self.ready()
        refused = {_node_of(refusal.entry) for refusal in self._refusals.values()}
        return Waiting(
            deltas=len(ready),
            since=min((self._arrived_at[key_of(each.entry)] for each in ready), default=None),
            answered={each.card.node_id for each in ready} | refused,
            silent_at=self.attendance.silences(),
            over=self.attendance.all_gone(now),
        )

    def waited(self, candidate: Candidate, *, now: Micros) -> Micros:
        """For how long a delta has been seen in the repository."""
        return Micros(now - self._arrived_at[key_of(candidate.entry)])

    def ready(self, most: int | None = None) -> tuple[Candidate, ...]:
        """What may be merged now, sorted by (node, step, path); a node's later deltas wait for
        its earlier. ``most`` of them: the earliest of every node first.
        """
        ranks: dict[str, int] = {}
        ranked: list[tuple[int, Candidate]] = []
        for entry in self._in_order():
            if key_of(entry) in self._cards and not self._is_stale(entry):
                card = self._cards[key_of(entry)]
                ranks[card.node_id] = ranks.get(card.node_id, -1) + 1
                ranked.append((ranks[card.node_id], Candidate(entry=entry, card=card)))
        chosen = sorted(ranked, key=lambda item: item[0])[:most]
        taken = {candidate.entry.path for _, candidate in chosen}
        return tuple(candidate for _, candidate in ranked if candidate.entry.path in taken)

    def compose(
        self,
        merged: Sequence[Candidate],
        *,
        counted: int,
        with_state: bool = True,
        closing: bool = False,
    ) -> Publication:
        """The publication after these were merged, ``counted`` of them with a weight in the mean.

        Refused and stale deltas go with it. ``closing``: it is the last one, and says why.
        """
        outer_step = self.card.outer_step + (1 if counted else 0)
        taken = {key_of(candidate.entry): candidate for candidate in merged}
        ledger = self.ledger
        refused: list[Refusal] = []
        gone: list[FileEntry] = []
        waiting: set[str] = set()
        for entry in self._in_order():
            key, node_id = key_of(entry), _node_of(entry)
            if node_id in waiting:
                continue
            if key in taken:
                card = taken[key].card
                ledger = ledger.merged(
                    card, path=entry.path, blob_id=entry.blob_id, outer_step=outer_step
                )
            elif key in self._refusals:
                refused.append(self._refusals[key])
                ledger = self._with_refusal(ledger, self._refusals[key], outer_step)
            elif not self._is_stale(entry):
                waiting.add(node_id)
                continue
            gone.append(entry)
        for node_id, nonce in self.attendance.departed():
            ledger = _with_departure(ledger, node_id, nonce, outer_step)
        card = self._card(ledger, outer_step, merged, with_state=with_state, closing=closing)
        return Publication(
            card=card,
            ledger=ledger,
            merged=tuple(merged),
            refused=tuple(refused),
            deletions=tuple(entry for entry in gone if not self._stays(entry, card)),
            with_state=with_state,
            closing=closing,
        )

    def _with_refusal(self, ledger: Ledger, refusal: Refusal, outer_step: int) -> Ledger:
        """A file that does not say whose it is was sent by whoever claims the name."""
        where = parse_delta_path(refusal.entry.path)
        assert where is not None  # only deltas are refused
        claimed = self.attendance.nonce(where.node_id)
        if refusal.card is None and claimed is not None:
            ledger = ledger.introduced(where.node_id, claimed, outer_step=outer_step)
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

    def _card(
        self,
        ledger: Ledger,
        outer_step: int,
        merged: Sequence[Candidate],
        *,
        with_state: bool,
        closing: bool,
    ) -> GlobalCard:
        stop = self.card.stop
        if stop is None and self._max_tokens and ledger.tokens_total >= self._max_tokens:
            stop = f"run.max_tokens={self._max_tokens} reached"
        if stop is None and closing:
            stop = "every node is done"
        identities = tuple(candidate.card.identity for candidate in merged)
        return replace(
            self.card,
            outer_step=outer_step,
            bootstrap=outer_step == 0 and self.card.bootstrap,
            round=identities,
            since_state=() if with_state else (*self.card.since_state, identities),
            state_notes={},
            nodes=ledger.rows,
            tokens_total=ledger.tokens_total,
            stop=stop,
            closed=closing,
            fragment_steps=_fragment_steps(self.card.fragment_steps, merged, outer_step),
        )

    def _stays(self, entry: FileEntry, card: GlobalCard) -> bool:
        """A merged delta is needed until a state covers it, or is kept because that was asked."""
        key = key_of(entry)
        if key in self._refusals:
            return False
        found = self._cards[key]
        if any(found.identity in merged for merged in card.since_state):
            return True
        merged_at = self._merged_at.get(key, card.outer_step)
        return card.outer_step - merged_at < self._keep_merged

    # -- the commit --------------------------------------------------------------------------------

    def published(self, publication: Publication, card: GlobalCard) -> None:
        """The publication is the truth now, with this card."""
        self.take(card, publication.ledger)
        for candidate in publication.merged:
            self._merged_at[key_of(candidate.entry)] = card.outer_step
        for entry in publication.deletions:
            self._cards.pop(key_of(entry), None)
            self._arrived_at.pop(key_of(entry), None)
            self._refusals.pop(key_of(entry), None)
            self._merged_at.pop(key_of(entry), None)
            self._listing.pop(entry.path, None)

    def take(self, card: GlobalCard, ledger: Ledger) -> None:
        """Go on from this global; what was fetched stays."""
        self.card = card
        self.ledger = ledger
        self.closed = card.closed

    def conflict(
        self, publication: Publication, entries: Iterable[FileEntry], found: GlobalCard | None
    ) -> Literal["retry", "discard", "superseded"]:
        """What a refused commit means, from the listing at the new tip and the card found there.

        ``retry``: only files under nodes/ that we do not delete have changed, so the same round may
        follow the new tip. ``discard``: a file that we would delete has changed, or there is a new
        delta and the run would be over. ``superseded``: another publication is there.
        """
        if not self.is_current(found):
            return "superseded"
        listing = {entry.path: entry for entry in entries}
        same = all(listing.get(entry.path, entry) == entry for entry in publication.deletions)
        if publication.closing:
            same = same and deltas_in(listing) == deltas_in(self._listing)
        return "retry" if same else "discard"

    def is_current(self, found: GlobalCard | None) -> bool:
        """Whether the card in the repository is the one that this loop goes on from."""
        if found is None:
            return self.card.publication_id is None
        return found.publication_id is not None and found.publication_id == self.card.publication_id

    def is_late(self, found: GlobalCard | None) -> bool:
        """Whether a lookup shows less than what this loop goes on from: it lags behind."""
        if found is None:
            return self.card.publication_id is not None
        return found.version < self.card.version

    def nothing_left(self) -> bool:
        """Every delta of the last listing was merged before, or is refused."""
        return all(
            key_of(entry) in self._refusals or self._is_stale(entry)
            for entry in deltas_in(self._listing)
        )

    # -- inside ------------------------------------------------------------------------------------

    def _is_read(self, entry: FileEntry) -> bool:
        return key_of(entry) in self._cards or key_of(entry) in self._refusals

    def _in_order(self) -> list[FileEntry]:
        """Deltas that were read, up to the first of each node that was not."""
        blocked: set[str] = set()
        order: list[FileEntry] = []
        for entry in deltas_in(self._listing):
            node_id = _node_of(entry)
            if not self._is_read(entry):
                blocked.add(node_id)
            if node_id not in blocked:
                order.append(entry)
        return order

    def _is_stale(self, entry: FileEntry) -> bool:
        card = self._cards.get(key_of(entry))
        return card is not None and self.ledger.has(card, path=entry.path, blob_id=entry.blob_id)


def _fragment_steps(
    before: tuple[int, ...], merged: Sequence[Candidate], outer_step: int
) -> tuple[int, ...]:
    """When each fragment last changed, once these are merged into the global of ``outer_step``."""
    steps = list(before)
    for candidate in merged:
        card = candidate.card
        if card.fragment is not None:
            steps[card.fragment] = outer_step
    return tuple(steps)


def _node_of(entry: FileEntry) -> str:
    return entry.path.split("/")[1]


def _with_departure(ledger: Ledger, node_id: str, nonce: str, outer_step: int) -> Ledger:
    row = ledger.rows.get(node_id)
    if row is not None and row.done and row.nonce == nonce:
        return ledger
    return ledger.done(node_id, nonce, outer_step=outer_step)
