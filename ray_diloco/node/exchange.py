"""What a node does at the hub, as lanes: claim its name, upload a delta, poll for a global, depart.

Lanes only read and write files and the repository. What they find goes back to the coordinator.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ray_diloco.errors import (
    ContentError,
    EntryMissing,
    ForeignRunError,
    GlobalError,
    NodeInUseError,
    QuotaExceeded,
    RevisionMissing,
    SafetensorsError,
    TransientHubError,
)
from ray_diloco.hub.limits import Kind
from ray_diloco.hub.patience import Retry
from ray_diloco.hub.repository import Addition, FileEntry, Repository
from ray_diloco.node.actions import Job
from ray_diloco.node.weights import Weights
from ray_diloco.protocol.clock import Access, Clock, Effect, Sleep, Transfer
from ray_diloco.protocol.delta_card import DeltaCard
from ray_diloco.protocol.global_card import CARD_LIMIT, GlobalCard
from ray_diloco.protocol.node_card import NodeCard
from ray_diloco.protocol.paths import (
    CARD_PATH,
    NODES_FOLDER,
    delta_path,
    node_card_path,
    parse_delta_path,
)
from ray_diloco.tensors.dtypes import State
from ray_diloco.tensors.safetensors_writer import WrittenFile

CLAIM_LIMIT = 64 * 1024
"""The most bytes that a node's claim may have."""

Steps = Generator[Effect, Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded:
    """How an upload job ended. ``reason``: why it was refused."""

    outcome: Literal["landed", "refused", "zero", "not finite"]
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """What a poll found: nothing, only newer metadata, a newer global, or one that is refused."""

    card: GlobalCard | None = None
    state: State | None = None
    refused: str | None = None


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
    ) -> None:
        self._node_id = node_id
        self._nonce = nonce
        self._run_id = run_id
        self._inner_steps = inner_steps
        self._repository = repository
        self._weights = weights
        self._retry = retry
        self._clock = clock
        self._outgoing = state_dir / "outgoing"
        self._incoming = state_dir / "incoming"
        self._etag: str | None = None
        self._peer_led = False
        self._last_number = 0
        self.delta_file = self._outgoing
        """The file of the last upload job, once it is encoded."""
        self._started = clock.utc()
        for folder in (self._outgoing, self._incoming):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    @property
    def peer_led(self) -> bool:
        """The globals of this run come from a plain peer."""
        return self._peer_led

    # -- the name ----------------------------------------------------------------------------------

    def claim(self, *, takeover: bool) -> Steps:
        """Take the name; gives the last local step that was ever used under it.

        NodeInUseError when another process holds it and ``takeover`` is false.
        """
        repository, path = self._repository, node_card_path(self._node_id)
        commit = yield from self._ask(repository.head_commit, kind="look")
        files = yield from self._ask(
            lambda: repository.list_files(f"{NODES_FOLDER}/{self._node_id}", commit=commit)
        )
        used = max(
            (found.local_step for e in files if (found := parse_delta_path(e.path))), default=0
        )
        if any(entry.path == path for entry in files):
            claim = yield from self._read_claim(commit)
            used = max(used, claim.last_local_step if claim is not None else 0)
            if claim is not None and claim.state == "active" and not takeover:
                raise self._in_use(claim)
        used = max(used, (yield from self._last_known_step(commit)))
        yield from self._write_claim(state="active", last_local_step=used)
        commit = yield from self._ask(repository.head_commit, kind="look")
        winner = yield from self._read_claim(commit)
        if winner is None or winner.nonce != self._nonce:
            raise self._in_use(winner)
        return used

    def depart(self, *, last_local_step: int) -> Steps:
        """Say that this node is done."""
        yield from self._write_claim(state="done", last_local_step=last_local_step)

    def _in_use(self, claim: NodeCard | None) -> NodeInUseError:
        since = f" since {claim.started}" if claim is not None else ""
        return NodeInUseError(
            f"node id {self._node_id!r} is in use{since}: choose another id, or set "
            "run.takeover=true when that process is gone"
        )

    def _read_claim(self, commit: str) -> Generator[Effect, Any, NodeCard | None]:
        path = node_card_path(self._node_id)
        data = yield from self._ask(
            lambda: self._repository.read(path, commit=commit, limit=CLAIM_LIMIT)
        )
        try:
            return NodeCard.from_json(data, path=path)
        except ContentError:
            return None

    def _write_claim(self, *, state: Literal["active", "done"], last_local_step: int) -> Steps:
        claim = NodeCard(
            nonce=self._nonce,
            started=self._started,
            state=state,
            run_id=self._run_id or None,
            last_local_step=last_local_step,
        )
        addition = Addition(path=node_card_path(self._node_id), source=claim.to_json())
        message = f"{self._node_id} is {state}"
        yield from self._ask(lambda: self._repository.commit(message, additions=[addition]))

    def _last_known_step(self, commit: str) -> Generator[Effect, Any, int]:
        card = yield from self._read_card(commit)
        row = card.nodes.get(self._node_id) if card is not None else None
        return row.last_local_step if row is not None else 0

    # -- an upload job -----------------------------------------------------------------------------

    def upload(self, job: Job, encoded: Callable[[], None]) -> Steps:
        """Write the delta once, call ``encoded``, and send the same bytes until their fate is
        known.
        """
        number = (
            (yield from self._peer_number(job.local_step)) if self._peer_led else job.local_step
        )
        card = self._card(job, number)
        file = self._outgoing / Path(delta_path(self._node_id, number)).name
        for old in self._outgoing.glob("delta_*.safetensors"):
            old.unlink()
        written = self._weights.write(file, card.header())
        self.delta_file = file
        if written.zero or not written.finite:
            return Uploaded(outcome="zero" if written.zero else "not finite")
        encoded()
        self._last_number = number
        return (yield from self._send(delta_path(self._node_id, number), number, written.file))

    def _card(self, job: Job, number: int) -> DeltaCard:
        return DeltaCard(
            node_id=self._node_id,
            local_step=number,
            base_outer_step=job.base_outer_step,
            nonce=self._nonce,
            covers=job.work.steps,
            oldest_base_outer_step=job.oldest_base_outer_step,
            tokens=job.work.tokens,
            mean_loss=job.work.mean_loss,
            schema=self._weights.schema.fingerprint,
            run_id=self._run_id or None,
            sent_at=self._clock.utc(),
            final=job.final,
        )

    def _peer_number(self, local_step: int) -> Generator[Effect, Any, int]:
        """A number that no other file bears: a peer's cache mixes up files of one number."""
        repository = self._repository
        commit = yield from self._ask(repository.head_commit, kind="look")
        files = yield from self._ask(lambda: repository.list_files(NODES_FOLDER, commit=commit))
        taken = {found.local_step for e in files if (found := parse_delta_path(e.path))}
        number = max(local_step, self._last_number + 1)
        while number in taken or (self._inner_steps > 1 and number % self._inner_steps == 0):
            number += 1
        return number

    def _send(self, path: str, number: int, written: WrittenFile) -> Steps:
        addition = Addition(path=path, source=written.path, sha256=written.sha256)
        message = f"delta of {self._node_id} at local step {number}"
        yield Transfer("up", written.size)
        yield from self._ask(lambda: self._repository.stage([addition]))
        may_have_landed, attempt = False, 0
        while True:
            try:
                yield Access(lambda: self._repository.commit(message, additions=[addition]))
                return Uploaded(outcome="landed")
            except QuotaExceeded as error:
                yield Sleep(self._retry.quota_delay(error))
                reason = str(error)
                if not may_have_landed:
                    return Uploaded(outcome="refused", reason=reason)
            except TransientHubError as error:
                may_have_landed = may_have_landed or error.outcome == "unknown"
                yield Sleep(self._retry.delay(attempt))
            attempt += 1
            if may_have_landed and (yield from self._has_landed(path, number)):
                return Uploaded(outcome="landed")

    def _has_landed(self, path: str, number: int) -> Generator[Effect, Any, bool]:
        """Whether the delta is in the repository or in the ledger, at one commit."""
        repository = self._repository
        commit = yield from self._ask(repository.head_commit, kind="look")
        entry: FileEntry | None = yield from self._ask(
            lambda: repository.entry(path, commit=commit)
        )
        if entry is not None:
            return True
        card = yield from self._read_card(commit)
        row = card.nodes.get(self._node_id) if card is not None else None
        return row is not None and row.nonce == self._nonce and row.last_local_step >= number

    # -- a poll ------------------------------------------------------------------------------------

    def poll(self, *, seen: tuple[int, int], anew: bool) -> Steps:
        """Look for a global that is newer than ``seen``, or with ``anew`` at least as new; fetch
        it.

        GlobalError when it is not a global of this model. ForeignRunError when it is another run's.
        """
        repository = self._repository
        head = yield from self._ask(lambda: repository.head(CARD_PATH), kind="look")
        if head is None or (head.etag == self._etag and not anew):
            return Polled()
        try:
            card = yield from self._read_card(head.commit)
        except GlobalError as error:
            self._etag = head.etag
            return Polled(refused=str(error))
        except RevisionMissing:
            return Polled()
        if card is None:
            return Polled()
        self._check_run(card)
        if card.version < seen or (card.version == seen and not anew):
            self._etag = head.etag
            return Polled(card=card)
        return (yield from self._fetch(card, head.commit, head.etag))

    def _fetch(self, card: GlobalCard, commit: str, etag: str) -> Steps:
        repository = self._repository
        file = self._incoming / "global.safetensors"
        try:
            if card.model_sha256 is None:
                commit = yield from self._ask(
                    lambda: repository.last_commit(CARD_PATH, commit=commit)
                )
            yield from self._ask(
                lambda: repository.fetch(
                    card.model_file, commit=commit, destination=file, sha256=card.model_sha256
                )
            )
            yield Transfer("down", file.stat().st_size)
            state = self._weights.check(file)
        except RevisionMissing:
            return Polled()
        except SafetensorsError as error:
            self._etag = etag
            return Polled(refused=f"{card.model_file}: {error}")
        self._etag = etag
        self._peer_led = card.publication_id is None
        return Polled(card=card, state=state)

    def _check_run(self, card: GlobalCard) -> None:
        if self._run_id and card.run_id not in (None, self._run_id):
            raise ForeignRunError(
                f"{self._repository.repo_id} holds run {card.run_id!r}, expected {self._run_id!r}"
            )
        self._run_id = self._run_id or card.run_id or ""

    # -- inside ------------------------------------------------------------------------------------

    def _read_card(self, commit: str) -> Generator[Effect, Any, GlobalCard | None]:
        repository = self._repository
        try:
            data = yield from self._ask(
                lambda: repository.read(CARD_PATH, commit=commit, limit=CARD_LIMIT)
            )
        except EntryMissing:
            return None
        return GlobalCard.from_json(data)

    def _ask(self, call: Callable[[], Any], *, kind: Kind = "read") -> Steps:
        """A call that may be repeated: its passing faults are waited out."""
        return self._retry.asking(call, kind=kind)
