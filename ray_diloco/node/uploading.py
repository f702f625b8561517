"""How a node sends a delta: written once, the same bytes until their fate is known."""

import itertools
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ray_diloco.errors import QuotaExceeded, RevisionMissing, TransientHubError
from ray_diloco.hub.limits import Kind
from ray_diloco.hub.patience import Retry
from ray_diloco.hub.repository import Addition, FileEntry, Repository
from ray_diloco.hub.signature import Signer
from ray_diloco.node.actions import Job
from ray_diloco.node.checkpoint import file_sha256, link
from ray_diloco.node.polling import Polling, Steps
from ray_diloco.node.sighting import read_sound_card
from ray_diloco.node.weights import Weights
from ray_diloco.protocol.clock import Access, Clock, Effect, Sleep, Transfer
from ray_diloco.protocol.delta_card import DeltaCard
from ray_diloco.protocol.paths import NODES_FOLDER, delta_path, parse_delta_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded:
    """How an upload job ended. ``reason``: why it was refused."""

    outcome: Literal["landed", "refused", "zero", "not finite"]
    reason: str = ""


class Uploading:
    """The upload jobs of one node, one at a time."""

    def __init__(
        self,
        *,
        node_id: str,
        nonce: str,
        inner_steps: int,
        repository: Repository,
        weights: Weights,
        retry: Retry,
        clock: Clock,
        outgoing: Path,
        polling: Polling,
        signer: Signer | None,
        shard_tokens: int | None,
        landed: Callable[[], None],
    ) -> None:
        """``outgoing``: a folder for the delta's file. ``polling``: knows the run. ``landed``: is
        called when a delta is in the repository.
        """
        self.nonce = nonce
        self._node_id = node_id
        self._inner_steps = inner_steps
        self._repository = repository
        self._weights = weights
        self._retry = retry
        self._clock = clock
        self._outgoing = outgoing
        self._polling = polling
        self._signer = signer
        self._shard_tokens = shard_tokens
        self._landed = landed
        self.last_number = 0
        """The highest number that a delta of this nonce was ever encoded under."""
        self.delta_file = outgoing
        """The file of the last upload job, once it is encoded."""

    def upload(
        self, job: Job, encoded: Callable[[], None], keep: Callable[[], None] | None = None
    ) -> Steps:
        """Write the delta once, ``keep`` what a restart needs, call ``encoded``, and send the same
        bytes until their fate is known.
        """
        number = job.local_step
        if self._polling.peer_led:
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
            nonce=self.nonce,
            covers=job.work.steps,
            oldest_base_outer_step=job.oldest_base_outer_step,
            tokens=job.work.tokens,
            shard_tokens=self._shard_tokens,
            mean_loss=job.work.mean_loss,
            schema=self._weights.schema.fingerprint,
            run_id=self._polling.run_id or None,
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
                self._landed()
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
                self._landed()
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
        return row is not None and row.nonce == self.nonce and row.last_local_step >= number

    def _ask(self, call: Callable[[], Any], *, kind: Kind = "read") -> Steps:
        """A call that may be repeated: its passing faults are waited out."""
        return self._retry.asking(call, kind=kind)
