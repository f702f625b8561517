"""Who takes part in a run, when each was last seen, and who has ended. Pure."""

from collections.abc import Collection, Iterator

from ray_diloco.hub.repository import FileEntry
from ray_diloco.master.listing import Key, Listing, claimant, claims_in, key_of, node_of
from ray_diloco.protocol.clock import Micros
from ray_diloco.protocol.node_card import NodeCard


class Attendance:
    """``expected``: nodes to wait for, wherever they are. ``anew``: the run had ended and goes on,
    so that what the claims of the first listing say is over.
    """

    def __init__(
        self, expected: Collection[str], *, node_timeout: Micros, anew: bool, now: Micros
    ) -> None:
        self.changes = 0
        """How many times a node was seen to change something: so many commits, at least."""
        self._timeout = node_timeout
        self._anew = anew
        self._moved_at: dict[str, Micros] = dict.fromkeys(expected, now)
        self._claims: dict[str, NodeCard] = {}
        self._read: set[Key] = set()
        self._gone: set[str] = set()

    def note(self, before: Listing, listing: Listing, now: Micros) -> None:
        """What has changed between two listings shows who lives."""
        if self._anew:
            self._anew = False
            self._read |= {key_of(entry) for entry in claims_in(listing)}
        for path, entry in listing.items():
            node_id = node_of(path)
            if node_id is None or before.get(path) == entry or key_of(entry) in self._read:
                continue
            self._moved_at[node_id] = now
            self.changes += 1

    def unread(self, listing: Listing) -> tuple[FileEntry, ...]:
        """Claims to be read."""
        return tuple(entry for entry in claims_in(listing) if key_of(entry) not in self._read)

    def claimed(self, entry: FileEntry, claim: NodeCard | None) -> None:
        """A claim was read; None when it is not one. A node that starts again is not gone."""
        self._read.add(key_of(entry))
        node_id = claimant(entry.path)
        if claim is None or node_id is None:
            return
        earlier = self._claims.get(node_id)
        if earlier is not None and earlier.nonce != claim.nonce:
            self._gone.discard(node_id)
        self._claims[node_id] = claim

    def forget(self, node_id: str) -> None:
        """Whoever runs this node knows that it has ended, well or not: do not wait for it."""
        self._gone.add(node_id)

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

    def next_silence(self, now: Micros) -> Micros | None:
        """When the last node that is not done counts as gone, unless one moves before; None when
        that is over, or all are done.
        """
        waiting = [at for node_id, at in self._moved_at.items() if not self._is_done(node_id)]
        last = Micros(max(waiting) + self._timeout) if waiting else now
        return last if last > now else None

    def _is_done(self, node_id: str) -> bool:
        claim = self._claims.get(node_id)
        return node_id in self._gone or (claim is not None and claim.state == "done")
