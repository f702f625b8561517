"""Who takes part in a run, when each was last seen, and who has ended. Pure."""

from collections.abc import Collection, Iterator

from ray_diloco.hub.repository import FileEntry
from ray_diloco.master.listing import Key, Listing, claimant, claims_in, key_of, node_of
from ray_diloco.protocol.clock import Micros
from ray_diloco.protocol.node_card import NodeCard


class Attendance:
    """``expected``: nodes to wait for, wherever they are. ``anew``: the run had ended and goes on,
    so that what the claims of the first listing say is over. ``began``: but for those that were
    made since then; None: nobody can tell, since participants read clocks of their own.
    """

    def __init__(
        self,
        expected: Collection[str],
        *,
        node_timeout: Micros,
        anew: bool,
        began: str | None = None,
        now: Micros,
    ) -> None:
        self.changes = 0
        """How many times a node was seen to change something: so many commits, at least."""
        self._timeout = node_timeout
        self._anew = anew
        self._began = began
        self._doubtful: set[Key] = set()
        self._looked_at = now
        self._moved_at: dict[str, Micros] = dict.fromkeys(expected, now)
        self._claims: dict[str, NodeCard] = {}
        self._read: set[Key] = set()
        self._gone: set[str] = set()
        self._seen: set[str] = set()

    def note(self, before: Listing, listing: Listing, now: Micros) -> None:
        """What has changed between two listings shows who lives."""
        self._looked_at = now
        if self._anew:
            self._anew = False
            found = self._read if self._began is None else self._doubtful
            found |= {key_of(entry) for entry in claims_in(listing)}
        known = self._read | self._doubtful
        for path, entry in listing.items():
            node_id = node_of(path)
            if node_id is None or before.get(path) == entry or key_of(entry) in known:
                continue
            self._moved(node_id)

    def _moved(self, node_id: str) -> None:
        self._moved_at[node_id] = self._looked_at
        self._seen.add(node_id)
        self.changes += 1

    def unread(self, listing: Listing) -> tuple[FileEntry, ...]:
        """Claims to be read."""
        return tuple(entry for entry in claims_in(listing) if key_of(entry) not in self._read)

    def claimed(self, entry: FileEntry, claim: NodeCard | None) -> None:
        """A claim was read; None when it is not one. A node that starts again is not gone."""
        key, node_id = key_of(entry), claimant(entry.path)
        self._read.add(key)
        if claim is None or node_id is None:
            return
        if key in self._doubtful:
            self._doubtful.discard(key)
            if self._began is None or claim.started < self._began:
                return
            self._moved(node_id)
        earlier = self._claims.get(node_id)
        if earlier is not None and earlier.nonce != claim.nonce:
            self._gone.discard(node_id)
        self._claims[node_id] = claim

    def forget(self, node_id: str) -> None:
        """Whoever runs this node knows that it has ended, well or not: do not wait for it."""
        self._gone.add(node_id)

    def forget_unseen(self) -> None:
        """The run is to end: whoever was expected and never came is not waited for."""
        self._gone.update(self.missing())

    def missing(self) -> tuple[str, ...]:
        """Who is waited for and has never come."""
        return tuple(sorted(self._moved_at.keys() - self._seen - self._gone))

    def nonce(self, node_id: str) -> str | None:
        """Of the last claim on this name; None without one."""
        claim = self._claims.get(node_id)
        return claim.nonce if claim is not None else None

    def departed(self) -> Iterator[tuple[str, str]]:
        """Node and nonce of each that has said that it is done."""
        for node_id, claim in self._claims.items():
            if claim.state == "done":
                yield node_id, claim.nonce

    def all_gone(self, now: Micros) -> bool:
        """Every node that is expected or known has said that it is done, or has long been
        silent.
        """
        return bool(self._moved_at) and all(
            self._is_done(node_id) or now - moved >= self._timeout
            for node_id, moved in self._moved_at.items()
        )

    def silences(self) -> dict[str, Micros]:
        """When each node that is not done counts as gone, unless it moves before."""
        return {
            node_id: Micros(moved + self._timeout)
            for node_id, moved in self._moved_at.items()
            if not self._is_done(node_id)
        }

    def next_silence(self, now: Micros) -> Micros | None:
        """When the last node that is not done counts as gone, unless one moves before; None when
        that is over, or all are done.
        """
        last = max(self.silences().values(), default=now)
        return last if last > now else None

    def _is_done(self, node_id: str) -> bool:
        claim = self._claims.get(node_id)
        return node_id in self._gone or (claim is not None and claim.state == "done")
