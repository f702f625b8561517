"""What a node does at the hub, as lanes: upload a delta, poll for a global. Its name: `claiming`.

Lanes only read and write files and the repository. What they find goes back to the coordinator.
"""

import itertools
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ray_diloco.errors import (
    QuotaExceeded,
    RevisionMissing,
    TransientHubError,
)
from ray_diloco.hub.limits import Kind, Share, node_share
from ray_diloco.hub.patience import Retry
from ray_diloco.hub.repository import Addition, FileEntry, Repository
from ray_diloco.hub.signature import Signer, Trust
from ray_diloco.node.actions import Job
from ray_diloco.node.checkpoint import Facts, file_sha256, link
from ray_diloco.node.claiming import Claim, Claimed, Watching
from ray_diloco.node.polling import Polling, Steps
from ray_diloco.node.sighting import read_sound_card
from ray_diloco.node.weights import Weights
from ray_diloco.protocol.clock import Access, Clock, Effect, Micros, Sleep, Transfer, micros
from ray_diloco.protocol.delta_card import DeltaCard
from ray_diloco.protocol.paths import NODES_FOLDER, delta_path, parse_delta_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded:
    """How an upload job ended. ``reason``: why it was refused."""

    outcome: Literal["landed", "refused", "zero", "not finite"]
    reason: str = ""


class Exchange:
    """A node's side of the repository. ``run_id`` "" takes that of the run it finds."""

    def __init__(
        self,
        *,
        node_id: str,
        nonce: str,
        run_id: str,
        inner_steps: int,
        repository: Repository,
        weights: Weights,
        retry: Retry,
        clock: Clock,
        state_dir: Path,
        node_timeout: float = 600.0,
        commits_per_hour: int | None = None,
        signer: Signer | None = None,
        trust: Trust | None = None,
        shard_tokens: int | None = None,
    ) -> None:
        """``node_timeout``: seconds after which a silent process under our name counts as gone.
        ``commits_per_hour``: of all participants; None: nobody counts. ``signer``: of deltas.
        ``trust``: whose globals are taken; None: everybody's. ``shard_tokens``: what deltas say of
        the size of the data; None: nothing.
        """
        self._node_id = node_id
        self._nonce = nonce
        self._inner_steps = inner_steps
        self._repository = repository
        self._weights = weights
        self._retry = retry
        self._clock = clock
        self._signer = signer
        self._shard_tokens = shard_tokens
        self._share = Share(clock, commits_per_hour, node_share)
        self._beat_after = micros(node_timeout / 2)
        self._last_sign = clock.now()
        self._beats = 0
        self._used = 0
        self.state_dir = state_dir
        self._outgoing = state_dir / "outgoing"
        incoming = state_dir / "incoming"
        self._polling = Polling(
            run_id=run_id,
            repository=repository,
            weights=weights,
            retry=retry,
            clock=clock,
            incoming=incoming,
            trust=trust,
            heed=self._share.heed,
        )
        self.last_number = 0
        """The highest number that a delta of this nonce was ever encoded under."""
        self.delta_file = self._outgoing
        """The file of the last upload job, once it is encoded."""
        self._claim = Claim(
            node_id=node_id,
            repository=repository,
            retry=retry,
            clock=clock,
            state_dir=state_dir,
            node_timeout=node_timeout,
            gap=inner_steps,
        )
        for folder in (self._outgoing, incoming):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    @property
    def peer_led(self) -> bool:
        """The globals of this run come from a plain peer."""
        return self._polling.peer_led

    @property
    def run_id(self) -> str:
        """Of the run that this node is part of; "" while that is not known."""
        return self._polling.run_id

    def may_send(self) -> bool:
        """Whether this node's share of the commit budget has room for a delta now."""
        return not self._share.wait()

    def conclude(self) -> None:
        """Say what trouble with the hub was waited out."""
        self._retry.conclude()

    # -- the name ----------------------------------------------------------------------------------

    def claim(
        self, *, takeover: bool, kept: Facts | None = None, watching: Watching | None = None
    ) -> Steps:
        """Take the name; gives `Claimed`. ``kept``: our checkpoint, whose nonce goes on if nobody
        else had the name since.

        NodeInUseError when another process holds it and ``takeover`` is false.
        """
        self._share.spend()
        claimed: Claimed = yield from self._claim.take(
            self._nonce,
            run_id=self.run_id,
            kept=None if kept is None else kept.nonce,
            takeover=takeover,
            watching=watching,
        )
        self._nonce = claimed.nonce
        self._used, self._last_sign = claimed.used, self._clock.now()
        if kept is not None and claimed.continues:
            self.last_number = max(kept.last_number, claimed.own)
            self._polling.follow(peer_led=kept.peer_led)
            self._polling.run_id = self.run_id or kept.run_id
        return claimed

    @property
    def beat_due(self) -> Micros:
        """When the node should show that it lives, unless it has sent something by then: early
        enough that nobody takes it for gone.
        """
        return Micros(self._last_sign + self._beat_after)

    def beat(self) -> Steps:
        """Show that this node lives. Trouble on the way is no matter: the next one is due soon."""
        self._beats += 1
        self._last_sign = self._clock.now()
        try:
            yield from self._claim.beat(
                self._nonce,
                run_id=self.run_id,
                last_local_step=max(self._used, self.last_number),
                number=self._beats,
            )
            self._share.spend()
        except (QuotaExceeded, TransientHubError) as error:
            self._retry.note(error)

    def depart(self, *, last_local_step: int) -> Steps:
        """Say that this node is done."""
        self._share.spend()
        yield from self._claim.give_back(
            self._nonce, run_id=self.run_id, last_local_step=last_local_step
        )

    # -- an upload job -----------------------------------------------------------------------------

    def upload(
        self, job: Job, encoded: Callable[[], None], keep: Callable[[], None] | None = None
    ) -> Steps:
        """Write the delta once, ``keep`` what a restart needs, call ``encoded``, and send the same
        bytes until their fate is known.
        """
        number = job.local_step
        if self.peer_led:
            number = yield from self._peer_number(job.local_step)
        elif job.fragment is not None:  # at the end one after the other goes out of one step
            number = max(number, self.last_number + 1)
        card = self._card(job, number)
        file = self._outgoing / Path(delta_path(self._node_id, number)).name
        for old in self._outgoing.glob("delta_*.safetensors"):
            old.unlink()
        seal = self._signer.signed_header if self._signer is not None else None
        written = self._weights.write(file, card.header(), seal)
        self.delta_file = file
        if written.zero or not written.finite:
            return Uploaded(outcome="zero" if written.zero else "not finite")
        self.last_number = number
        if keep is not None:
            keep()
        encoded()
        return (yield from self._send(number, written.file.sha256))

    def take_back(self, kept: Path, number: int) -> None:
        """The delta of a job that a checkpoint kept; `resend` sends it."""
        self.delta_file = self._outgoing / Path(delta_path(self._node_id, number)).name
        link(kept, self.delta_file)

    def resend(self, number: int) -> Steps:
        """A job from before a restart, which may have been sent: look, and send the same bytes
        until their fate is known.
        """
        return (yield from self._send(number, file_sha256(self.delta_file), may_have_landed=True))

    def _card(self, job: Job, number: int) -> DeltaCard:
        return DeltaCard(
            node_id=self._node_id,
            local_step=number,
            base_outer_step=job.base_outer_step,
            nonce=self._nonce,
            covers=job.work.steps,
            oldest_base_outer_step=job.oldest_base_outer_step,
            tokens=job.work.tokens,
            shard_tokens=self._shard_tokens,
            mean_loss=job.work.mean_loss,
            schema=self._weights.schema.fingerprint,
            run_id=self.run_id or None,
            sent_at=self._clock.utc(),
            final=job.final,
            fragment=job.fragment,
            fragments=self._weights.fragments,
        )

    def _peer_number(self, local_step: int) -> Generator[Effect, Any, int]:
        """A number that no other file bears: a peer's cache mixes up files of one number."""
        repository = self._repository
        commit = yield from self._ask(repository.head_commit, kind="look")
        files = yield from self._ask(lambda: repository.list_files(NODES_FOLDER, commit=commit))
        taken = {found.local_step for e in files if (found := parse_delta_path(e.path))}
        number = max(local_step, self.last_number + 1)
        while number in taken or (self._inner_steps > 1 and number % self._inner_steps == 0):
            number += 1
        return number

    def _send(self, number: int, sha256: str, *, may_have_landed: bool = False) -> Steps:
        path = delta_path(self._node_id, number)
        addition = Addition(path=path, source=self.delta_file, sha256=sha256)
        message = f"delta of {self._node_id} at local step {number}"
        if may_have_landed and (yield from self._has_landed(addition, number)):
            return Uploaded(outcome="landed")
        yield Transfer("up", self.delta_file.stat().st_size)
        deadline, attempt = self._clock.now() + self._retry.deadline, 0
        while True:
            try:
                yield from self._ask(lambda: self._repository.stage([addition]))
                yield Access(lambda: self._repository.commit(message, additions=[addition]))
                self._share.spend()
                self._last_sign = self._clock.now()
                return Uploaded(outcome="landed")
            except QuotaExceeded as error:
                fault, wait, late = error, self._retry.quota_delay(error), True
            except TransientHubError as error:
                fault, wait = error, self._retry.delay(attempt)
                late = self._clock.now() + wait > deadline
                may_have_landed = may_have_landed or error.outcome == "unknown"
            self._retry.note(fault)
            yield Sleep(wait)
            attempt += 1
            if may_have_landed and (yield from self._has_landed(addition, number)):
                self._share.spend()
                self._last_sign = self._clock.now()
                return Uploaded(outcome="landed")
            if late and not may_have_landed:
                return Uploaded(outcome="refused", reason=str(fault))

    def _has_landed(self, addition: Addition, number: int) -> Generator[Effect, Any, bool]:
        """Whether the delta arrived. A job whose fate is unknown is never given up."""
        for attempt in itertools.count():
            try:
                return (yield from self._is_there(addition, number))
            except (QuotaExceeded, RevisionMissing, TransientHubError) as error:
                self._retry.note(error)
                yield Sleep(self._retry.delay(attempt))
        raise AssertionError("the count has no end")

    def _is_there(self, addition: Addition, number: int) -> Generator[Effect, Any, bool]:
        """Whether the delta is in the repository or in the ledger, at one commit. Other bytes at
        its path are a late commit of somebody who had the name before.
        """
        repository = self._repository
        commit = yield from self._ask(repository.head_commit, kind="look")
        entry: FileEntry | None = yield from self._ask(
            lambda: repository.entry(addition.path, commit=commit)
        )
        if entry is not None and entry.sha256 in (None, addition.sha256):
            return True
        card = yield from read_sound_card(repository, self._retry, commit)
        row = card.nodes.get(self._node_id) if card is not None else None
        return row is not None and row.nonce == self._nonce and row.last_local_step >= number

    # -- a poll ------------------------------------------------------------------------------------

    def poll(self, *, seen: tuple[int, int], anew: bool, have: int = -1) -> Steps:
        """See `Polling.poll`."""
        return self._polling.poll(seen=seen, anew=anew, have=have)

    def poll_until_new(self, *, seen: tuple[int, int], every: Micros, have: int = -1) -> Steps:
        """See `Polling.poll_until_new`."""
        return self._polling.poll_until_new(seen=seen, every=every, have=have)

    # -- inside ------------------------------------------------------------------------------------

    def _ask(self, call: Callable[[], Any], *, kind: Kind = "read") -> Steps:
        """A call that may be repeated: its passing faults are waited out."""
        return self._retry.asking(call, kind=kind)
