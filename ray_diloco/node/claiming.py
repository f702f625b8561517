"""One name, one node: how a node takes its name at the hub, and gives it back.

A name is in use when another nonce holds it, has not said that it is done, and something of it
moves while we watch, on our own clock. A claim that we left ourselves needs no watching: the lock
on the state folder says that whoever left it is gone.
"""

import itertools
import logging
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ray_diloco.errors import EntryMissing, NodeInUseError, RevisionMissing
from ray_diloco.hub.patience import Retry
from ray_diloco.hub.repository import Addition, Repository
from ray_diloco.node.sighting import Sighting, look, read_claim
from ray_diloco.protocol.clock import Clock, Effect, Micros, Sleep, micros
from ray_diloco.protocol.node_card import NodeCard
from ray_diloco.protocol.paths import node_card_path

logger = logging.getLogger(__name__)

LOOKS = 20
"""How often a claim is looked at, at most, while it is watched."""
NOTED = 1000
"""How many nonces a state folder remembers."""

Steps = Generator[Effect, Any, Any]

Watching = Callable[[NodeCard], None]
"""Told of the claim that another process holds, when it begins to be watched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """The name is ours.

    ``continues``: under the nonce of our checkpoint. ``reached``: the last local step that was ever
    used under the name, as far as is known; ``used``: the same, with room for a commit that is
    still on its way; ``own``: the highest number of a delta that the repository knows of the
    nonce that continues. ``left_at``: the last local step of which the claim before ours spoke, if
    that was made in the same run; else 0. ``forerunners``: nonces that had the name before.
    ``publication_id``: of the global that was there; ``stop``: why the run was over by then, None
    while it goes on.
    """

    nonce: str
    continues: bool
    reached: int
    used: int
    own: int
    left_at: int
    forerunners: frozenset[str]
    publication_id: str | None
    stop: str | None


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

    def take(
        self,
        nonce: str,
        *,
        run_id: str,
        kept: str | None,
        takeover: bool,
        watching: Watching | None = None,
    ) -> Steps:
        """Take the name; gives what is known of it as `Claimed`. ``kept``: the nonce of our
        checkpoint, which goes on if nobody had the name since.

        NodeInUseError when another process holds it and ``takeover`` is false.
        """
        found: Sighting = yield from self._find()
        claim = found.claim
        continues = kept is not None and (claim is None or claim.nonce == kept)
        nonce = kept if kept is not None and continues else nonce
        if claim is not None and claim.state == "active" and not continues:
            if not takeover and claim.nonce not in self._claimed_before():
                yield from self._watch(found, claim, watching)
                found = yield from self._find()
                claim = found.claim
            gap = self._gap
        else:
            gap = 0
        forerunners = found.nonces
        if not continues:
            nonce = unused(nonce, {*forerunners, *self._claimed_before()}, found.highest)
        self._remember(nonce)
        yield from self._write(nonce, run_id=run_id, state="active", last_local_step=found.highest)
        yield from self._read_back(nonce, before=claim)
        return Claimed(
            nonce=nonce,
            continues=continues,
            reached=found.highest,
            used=found.highest + gap,
            own=found.highest_of(nonce) if continues else 0,
            left_at=claim.last_local_step if claim and claim.run_id == (run_id or None) else 0,
            forerunners=forerunners,
            publication_id=found.card.publication_id if found.card is not None else None,
            stop=found.card.stop if found.card is not None else None,
        )

    def give_back(self, nonce: str, *, run_id: str, last_local_step: int) -> Steps:
        """Say that this node is done. NodeInUseError when another process has the name now."""
        yield from self._require_ours(nonce)
        yield from self._write(nonce, run_id=run_id, state="done", last_local_step=last_local_step)

    def beat(self, nonce: str, *, run_id: str, last_local_step: int, number: int) -> Steps:
        """Show that this node lives, though it has long had nothing to send. NodeInUseError when
        another process has the name now.
        """
        yield from self._require_ours(nonce)
        yield from self._write(
            nonce, run_id=run_id, state="active", last_local_step=last_local_step, beat=number
        )

    def _watch(self, first: Sighting, holder: NodeCard, watching: Watching | None) -> Steps:
        """Returns when the name has been silent for ``node_timeout``, or is given back."""
        logger.warning(
            "%s; watching whether it lives, for %.0f s at most",
            in_use(self._node_id, holder),
            self._node_timeout / 1e6,
        )
        if watching is not None:
            watching(holder)
        pause = Micros(max(1, self._node_timeout // LOOKS))
        deadline = self._clock.now() + self._node_timeout
        while self._clock.now() < deadline:
            begun = self._clock.now()
            yield Sleep(pause)
            if self._clock.now() - begun < pause // 2:  # interrupted: the answer is not known yet
                raise NodeInUseError(in_use(self._node_id, holder))
            now: Sighting = yield from self._find()
            if now.claim is not None and now.claim.state == "done":
                return
            if now.sign != first.sign:
                raise NodeInUseError(in_use(self._node_id, now.claim))

    def _find(self) -> Generator[Effect, Any, Sighting]:
        for attempt in itertools.count():
            try:
                return (yield from look(self._node_id, self._repository, self._retry))
            except RevisionMissing as error:
                self._retry.note(error)
                yield Sleep(self._retry.delay(attempt))
        raise AssertionError("the count has no end")

    def _read_back(self, nonce: str, *, before: NodeCard | None) -> Steps:
        """NodeInUseError when another claim stands. A lookup that shows none, or the one from
        ``before`` ours, is late: look again, for as long as a call is tried.
        """
        deadline, attempt = self._clock.now() + self._retry.deadline, 0
        while True:
            commit = yield from self._retry.asking(self._repository.head_commit, kind="look")
            try:
                winner: NodeCard | None = yield from self._claim_at(commit)
            except (EntryMissing, RevisionMissing):
                winner = None
            if winner is not None and (winner.nonce, winner.started) == (nonce, self._started):
                return
            if winner not in (None, before) or self._clock.now() >= deadline:
                raise NodeInUseError(in_use(self._node_id, winner))
            yield Sleep(self._retry.delay(attempt))
            attempt += 1

    def _require_ours(self, nonce: str) -> Steps:
        """Whoever was taken over must not write over the claim of its successor."""
        commit = yield from self._retry.asking(self._repository.head_commit, kind="look")
        try:
            claim: NodeCard | None = yield from self._claim_at(commit)
        except (EntryMissing, RevisionMissing):  # a lookup that is late: it shows no other claim
            return
        if claim is not None and claim.nonce != nonce and claim.nonce not in self._claimed_before():
            raise NodeInUseError(in_use(self._node_id, claim))

    def _claim_at(self, commit: str) -> Generator[Effect, Any, NodeCard | None]:
        return read_claim(self._path, self._repository, self._retry, commit)

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
            lambda: self._repository.commit(message, additions=[addition]),
            kind="write",
            repeatable=True,
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


def unused(nonce: str, used: Collection[str], highest: int) -> str:
    """A nonce that nobody had: drawn from a seed, it is the same in each session of a run, and its
    account in the ledger would go on. ``highest``: the last local step that the name was used for.
    """
    if not any(each == nonce or each.startswith(f"{nonce}-") for each in used):
        return nonce
    first = f"{nonce}-{highest}"
    further = (f"{first}-{again}" for again in itertools.count(1))
    return next(name for name in itertools.chain([first], further) if name not in used)


def in_use(node_id: str, holder: NodeCard | None) -> str:
    """Who seems to use a name, and what to do."""
    who = ""
    if holder is not None:
        at = f", at local step {holder.last_local_step}" if holder.last_local_step else ""
        who = f" since {holder.started} by a process with nonce {holder.nonce}{at}"
    return (
        f"node id {node_id!r} is in use{who}: choose another id, or set run.takeover=true when "
        "that process is gone"
    )
