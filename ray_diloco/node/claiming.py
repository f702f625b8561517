"""One name, one node: how a node takes its name at the hub, and gives it back.

A name is in use when another nonce holds it, has not said that it is done, and something of it
moves while we watch, on our own clock. A claim that we left ourselves needs no watching: the lock
on the state folder says that whoever left it is gone.
"""

import itertools
import logging
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ray_diloco.errors import ContentError, EntryMissing, NodeInUseError, RevisionMissing
from ray_diloco.hub.patience import Retry
from ray_diloco.hub.repository import Addition, FileEntry, Repository
from ray_diloco.protocol.clock import Clock, Effect, Micros, Sleep, micros
from ray_diloco.protocol.global_card import CARD_LIMIT, GlobalCard, NodeRow
from ray_diloco.protocol.node_card import NodeCard
from ray_diloco.protocol.paths import CARD_PATH, NODES_FOLDER, node_card_path, parse_delta_path

logger = logging.getLogger(__name__)

CLAIM_LIMIT = 64 * 1024
"""The most bytes that a node's claim may have."""
LOOKS = 20
"""How often a claim is looked at, at most, while it is watched."""
NOTED = 8
"""How many nonces a state folder remembers."""

Steps = Generator[Effect, Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """The name is ours.

    ``continues``: under the nonce of our checkpoint. ``reached``: the last local step that was ever
    used under the name, as far as is known; ``used``: the same, with room for a commit that is
    still on its way; ``own``: the highest number of a delta that the repository knows of the
    nonce that continues. ``forerunners``: nonces that had the name before. ``publication_id``: of
    the global that was there.
    """

    nonce: str
    continues: bool
    reached: int
    used: int
    own: int
    forerunners: frozenset[str]
    publication_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What one commit knows of a name."""

    claim: NodeCard | None
    files: tuple[FileEntry, ...]
    row: NodeRow | None
    publication_id: str | None

    @property
    def sign(self) -> object:
        """Changes when something of the node moves."""
        return self.files, self.row.last_local_step if self.row is not None else 0

    @property
    def nonces(self) -> frozenset[str]:
        """Those that had the name, as far as can be seen."""
        seen = (self.claim.nonce if self.claim else None, self.row.nonce if self.row else None)
        return frozenset(each for each in seen if each is not None)

    @property
    def highest(self) -> int:
        """The last local step that the name was used for."""
        numbers = [found.local_step for e in self.files if (found := parse_delta_path(e.path))]
        claimed = self.claim.last_local_step if self.claim is not None else 0
        return max([claimed, self.row.last_local_step if self.row else 0, *numbers])

    def highest_of(self, nonce: str) -> int:
        """The highest number that was sent under the nonce that has the name. Claims say more: what
        was trained, but perhaps never sent.
        """
        numbers = [found.local_step for e in self.files if (found := parse_delta_path(e.path))]
        row = self.row
        merged = row.last_local_step if row is not None and row.nonce == nonce else 0
        return max([merged, *numbers])


class Claim:
    """A node's name. ``gap``: steps left out after an incarnation that did not say goodbye, whose
    last commit may still be on its way.
    """

    def __init__(
        self,
        *,
        node_id: str,
        repository: Repository,
        retry: Retry,
        clock: Clock,
        state_dir: Path,
        node_timeout: float = 600.0,
        gap: int = 0,
    ) -> None:
        self._node_id = node_id
        self._path = node_card_path(node_id)
        self._repository = repository
        self._retry = retry
        self._clock = clock
        self._note = state_dir / "claimed"
        self._node_timeout = micros(node_timeout)
        self._gap = gap
        self._started = clock.utc()

    def take(self, nonce: str, *, run_id: str, kept: str | None, takeover: bool) -> Steps:
        """Take the name; gives what is known of it as `Claimed`. ``kept``: the nonce of our
        checkpoint, which goes on if nobody had the name since.

        NodeInUseError when another process holds it and ``takeover`` is false.
        """
        found: _Found = yield from self._find()
        claim = found.claim
        continues = kept is not None and (claim is None or claim.nonce == kept)
        nonce = kept if kept is not None and continues else nonce
        if claim is not None and claim.state == "active" and not continues:
            if not takeover and claim.nonce not in self._claimed_before():
                yield from self._watch(found)
                found = yield from self._find()
                claim = found.claim
            gap = self._gap
        else:
            gap = 0
        forerunners = found.nonces
        if not continues and nonce in forerunners:
            nonce = f"{nonce}-{found.highest}"
        self._remember(nonce)
        yield from self._write(nonce, run_id=run_id, state="active", last_local_step=found.highest)
        yield from self._read_back(nonce, before=claim)
        return Claimed(
            nonce=nonce,
            continues=continues,
            reached=found.highest,
            used=found.highest + gap,
            own=found.highest_of(nonce) if continues else 0,
            forerunners=forerunners,
            publication_id=found.publication_id,
        )

    def give_back(self, nonce: str, *, run_id: str, last_local_step: int) -> Steps:
        """Say that this node is done."""
        yield from self._write(nonce, run_id=run_id, state="done", last_local_step=last_local_step)

    def beat(self, nonce: str, *, run_id: str, last_local_step: int, number: int) -> Steps:
        """Show that this node lives, though it has long had nothing to send."""
        yield from self._write(
            nonce, run_id=run_id, state="active", last_local_step=last_local_step, beat=number
        )

    def _watch(self, first: _Found) -> Steps:
        """Returns when the name has been silent for ``node_timeout``, or is given back."""
        logger.info(
            "node id %s is claimed by another process: watching whether it lives, for %.0f s at "
            "most; run.takeover=true when it is gone",
            self._node_id,
            self._node_timeout / 1e6,
        )
        pause = Micros(max(1, self._node_timeout // LOOKS))
        deadline = self._clock.now() + self._node_timeout
        while self._clock.now() < deadline:
            begun = self._clock.now()
            yield Sleep(pause)
            if self._clock.now() - begun < pause // 2:  # interrupted: the answer is not known yet
                raise self._in_use(first.claim)
            now: _Found = yield from self._find()
            if now.claim is not None and now.claim.state == "done":
                return
            if now.sign != first.sign:
                raise self._in_use(now.claim)

    def _find(self) -> Generator[Effect, Any, _Found]:
        for attempt in itertools.count():
            try:
                return (yield from self._look())
            except RevisionMissing as error:
                self._retry.note(error)
                yield Sleep(self._retry.delay(attempt))
        raise AssertionError("the count has no end")

    def _look(self) -> Generator[Effect, Any, _Found]:
        repository = self._repository
        commit = yield from self._retry.asking(repository.head_commit, kind="look")
        folder = f"{NODES_FOLDER}/{self._node_id}"
        files = yield from self._retry.asking(lambda: repository.list_files(folder, commit=commit))
        claim = None
        if any(entry.path == self._path for entry in files):
            claim = yield from self._read_claim(commit)
        card = yield from read_card(repository, self._retry, commit)
        row = card.nodes.get(self._node_id) if card is not None else None
        publication_id = card.publication_id if card is not None else None
        return _Found(claim=claim, files=files, row=row, publication_id=publication_id)

    def _read_back(self, nonce: str, *, before: NodeCard | None) -> Steps:
        """NodeInUseError when another claim stands. A lookup that shows none, or the one from
        ``before`` ours, is late: look again, for as long as a call is tried.
        """
        deadline, attempt = self._clock.now() + self._retry.deadline, 0
        while True:
            commit = yield from self._retry.asking(self._repository.head_commit, kind="look")
            try:
                winner: NodeCard | None = yield from self._read_claim(commit)
            except (EntryMissing, RevisionMissing):
                winner = None
            if winner is not None and (winner.nonce, winner.started) == (nonce, self._started):
                return
            if winner not in (None, before) or self._clock.now() >= deadline:
                raise self._in_use(winner)
            yield Sleep(self._retry.delay(attempt))
            attempt += 1

    def _read_claim(self, commit: str) -> Generator[Effect, Any, NodeCard | None]:
        try:
            data = yield from self._retry.asking(
                lambda: self._repository.read(self._path, commit=commit, limit=CLAIM_LIMIT)
            )
            return NodeCard.from_json(data, path=self._path)
        except ContentError:
            return None

    def _write(
        self,
        nonce: str,
        *,
        run_id: str,
        state: Literal["active", "done"],
        last_local_step: int,
        beat: int = 0,
    ) -> Steps:
        claim = NodeCard(
            nonce=nonce,
            started=self._started,
            state=state,
            run_id=run_id or None,
            last_local_step=last_local_step,
            beat=beat,
        )
        addition = Addition(path=self._path, source=claim.to_json())
        message = f"{self._node_id} is {state}"
        yield from self._retry.asking(
            lambda: self._repository.commit(message, additions=[addition])
        )

    def _claimed_before(self) -> list[str]:
        """The nonces that were claimed last from this state folder."""
        try:
            return self._note.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return []

    def _remember(self, nonce: str) -> None:
        """Before the claim is sent: whoever comes after us must know it."""
        known = [each for each in self._claimed_before() if each != nonce]
        partial = self._note.with_name("claimed.part")
        partial.write_text("\n".join([*known[1 - NOTED :], nonce]), encoding="utf-8")
        partial.replace(self._note)

    def _in_use(self, claim: NodeCard | None) -> NodeInUseError:
        since = f" since {claim.started}" if claim is not None else ""
        return NodeInUseError(
            f"node id {self._node_id!r} is in use{since}: choose another id, or set "
            "run.takeover=true when that process is gone"
        )


def read_card(
    repository: Repository, retry: Retry, commit: str
) -> Generator[Effect, Any, GlobalCard | None]:
    """The global's metadata at a commit; None when there is none, or none that can be trusted."""
    try:
        data = yield from retry.asking(
            lambda: repository.read(CARD_PATH, commit=commit, limit=CARD_LIMIT)
        )
        return GlobalCard.from_json(data)
    except (EntryMissing, ContentError):
        return None
