"""How a node looks for a newer global, and fetches the one that it finds; what it cannot go along
with is refused.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray_diloco.errors import (
    ConfigError,
    ContentError,
    EntryMissing,
    ForeignRunError,
    GlobalError,
    QuotaExceeded,
    RevisionMissing,
    SafetensorsError,
    TransientHubError,
)
from ray_diloco.hub.limits import Kind
from ray_diloco.hub.patience import Retry
from ray_diloco.hub.repository import FileEntry, FileHead, Repository
from ray_diloco.hub.signature import Trust
from ray_diloco.node.weights import Weights
from ray_diloco.protocol.clock import Access, Clock, Effect, Idle, Micros, Sleep, Transfer
from ray_diloco.protocol.fragments import changed_since
from ray_diloco.protocol.global_card import CARD_LIMIT, GlobalCard
from ray_diloco.protocol.paths import CARD_PATH, fragment_path
from ray_diloco.tensors.dtypes import State

RUN_START = Micros(0)

Steps = Generator[Effect, Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """What a poll found: nothing, only newer metadata, a newer global, or one that is refused.
    ``began``: when the model's fetch did. ``troubled``: the hub did not answer, so that there may
    be something. ``fragments``: those that ``state`` has; None: it is whole.
    """

    card: GlobalCard | None = None
    state: State | None = None
    refused: str | None = None
    fragments: tuple[int, ...] | None = None
    began: Micros = RUN_START
    troubled: bool = False


class _NotOurModel(GlobalError):
    """A sound global whose entries are not those of the model that this node trains."""


class Polling:
    """What one incarnation of a node knows of the globals in the repository."""

    def __init__(
        self,
        *,
        run_id: str,
        repository: Repository,
        weights: Weights,
        retry: Retry,
        clock: Clock,
        incoming: Path,
        trust: Trust | None,
        heed: Callable[[int], None],
    ) -> None:
        """``run_id`` "" takes that of the run it finds. ``incoming``: a folder for what is fetched.
        ``heed``: is told how many nodes take part.
        """
        self.run_id = run_id
        self.peer_led = False
        """The globals of this run come from a plain peer."""
        self._repository = repository
        self._weights = weights
        self._retry = retry
        self._clock = clock
        self._incoming = incoming
        self._trust = trust
        self._heed = heed
        self._etag: str | None = None
        self._refused: str | None = None

    def poll(self, *, seen: tuple[int, int], anew: bool, have: int = -1) -> Steps:
        """Look for a global that is newer than ``seen``, or with ``anew`` at least as new; fetch
        it, of a model in fragments those that changed since outer step ``have`` (-1: all).

        What must not be installed is refused with its reason, once. GlobalError when the first
        global of all is not one of this model, ForeignRunError when it is another run's.
        """
        try:
            head: FileHead | None = yield from self._ask(
                lambda: self._repository.head(CARD_PATH), kind="look"
            )
        except (QuotaExceeded, TransientHubError) as error:
            self._retry.note(error)
            return Polled(troubled=True)
        if head is None or head.etag == self._refused or (head.etag == self._etag and not anew):
            return Polled()
        try:
            found: Polled = yield from self._look(head, seen, anew=anew, have=have)
        except (RevisionMissing, QuotaExceeded, TransientHubError) as error:
            self._retry.note(error)
            return Polled(troubled=True)
        except (ContentError, EntryMissing) as error:
            if isinstance(error, _NotOurModel) and seen[1] < 0:
                raise GlobalError(str(error)) from None
            self._refused = head.etag
            return Polled(refused=str(error))
        self._etag = head.etag
        return found

    def poll_until_new(self, *, seen: tuple[int, int], every: Micros, have: int = -1) -> Steps:
        """`poll` until it finds something, or an interruption comes."""
        while True:
            found: Polled = yield from self.poll(seen=seen, anew=False, have=have)
            if found.card is not None or found.refused is not None:
                return found
            yield Sleep(every) if found.troubled else Idle(every)

    def _look(
        self, head: FileHead, seen: tuple[int, int], *, anew: bool, have: int
    ) -> Generator[Effect, Any, Polled]:
        data = yield from self._ask(
            lambda: self._repository.read(CARD_PATH, commit=head.commit, limit=CARD_LIMIT)
        )
        card = GlobalCard.from_json(data)
        self._check_run(card)
        objection = self._trust.objection_to_card(card) if self._trust is not None else None
        if objection is not None:
            raise GlobalError(f"{CARD_PATH}: {objection}")
        self._heed(sum(not row.done for row in card.nodes.values()))
        if card.version < seen:
            raise GlobalError(
                f"{CARD_PATH} goes back from (master_epoch, outer_step) {seen} to {card.version}"
            )
        self._check_fragments(card)
        if card.version == seen and not anew:
            return Polled(card=card)
        began, fragments = self._clock.now(), _worth_fetching(card, -1 if anew else have)
        state: State = {}
        if fragments is None:
            state = yield from self._read(card.model_file, card.model_sha256, head.commit)
        for fragment in fragments or ():
            path, sha256 = fragment_path(fragment), card.fragment_sha256[fragment]
            state |= yield from self._read(path, sha256, head.commit, fragment)
        self.follow(peer_led=card.publication_id is None)
        return Polled(card=card, state=state, fragments=fragments, began=began)

    def _read(
        self, path: str, sha256: str | None, commit: str, fragment: int | None = None
    ) -> Generator[Effect, Any, State]:
        """A file with a global, or with one fragment of it."""
        file = yield from self._fetch(path, sha256, commit)
        try:
            return self._weights.check(file, fragment)
        except GlobalError as error:
            raise _NotOurModel(str(error)) from None
        except SafetensorsError as error:
            raise GlobalError(f"{path}: {error}") from None

    def _fetch(self, path: str, sha256: str | None, commit: str) -> Generator[Effect, Any, Path]:
        """A file that a card names. GlobalError when its bytes are not those that were
        published: bytes that only arrived damaged are fetched again.
        """
        repository = self._repository
        file = self._incoming / "global.safetensors"
        if sha256 is None:
            commit = yield from self._ask(lambda: repository.last_commit(CARD_PATH, commit=commit))

        def fetch() -> str:
            return repository.fetch(path, commit=commit, destination=file, sha256=sha256)

        try:
            yield Access(fetch, kind="read")
        except (TransientHubError, QuotaExceeded):
            entry: FileEntry | None = yield from self._ask(
                lambda: repository.entry(path, commit=commit)
            )
            if entry is not None and sha256 is not None and entry.sha256 not in (None, sha256):
                raise GlobalError(f"{path}: its sha256 is not the one in {CARD_PATH}") from None
            yield from self._ask(fetch)
        yield Transfer("down", file.stat().st_size)
        return file

    def follow(self, *, peer_led: bool) -> None:
        """Go along with whoever leads. ConfigError for what a plain peer could not read."""
        self.peer_led = peer_led
        if peer_led and self._weights.fragments > 1:
            raise ConfigError(
                "diloco.fragments",
                self._weights.fragments,
                "expected 1: a plain peer leads this run, which takes whole deltas only",
            )
        if peer_led and self._weights.codec != "fp32":
            raise ConfigError(
                "diloco.codec",
                self._weights.codec,
                "expected fp32: a plain peer leads this run, which reads nothing else",
            )

    def _check_fragments(self, card: GlobalCard) -> None:
        """A plain peer's card says nothing of fragments, and means whole models."""
        found = max(1, len(card.fragment_steps))
        if card.publication_id is not None and found != self._weights.fragments:
            raise ConfigError(
                "diloco.fragments",
                self._weights.fragments,
                f"expected {found}, as this run has them",
            )

    def _check_run(self, card: GlobalCard) -> None:
        if self.run_id and card.run_id not in (None, self.run_id):
            raise ForeignRunError(
                f"{self._repository.repo_id} holds run {card.run_id!r}, expected {self.run_id!r}"
            )
        self.run_id = self.run_id or card.run_id or ""

    def _ask(self, call: Callable[[], Any], *, kind: Kind = "read") -> Steps:
        """A call that may be repeated: its passing faults are waited out."""
        return self._retry.asking(call, kind=kind)


def _worth_fetching(card: GlobalCard, have: int) -> tuple[int, ...] | None:
    """The fragments that are new since outer step ``have``, where they lie in files of their own
    and are not all; None: the whole model.
    """
    fragments = changed_since(have, card.fragment_steps)
    apart = len(card.fragment_sha256) == len(card.fragment_steps)
    if have < 0 or not card.fragment_steps or len(fragments) == len(card.fragment_steps):
        return None
    return fragments if apart and all(card.fragment_sha256[each] for each in fragments) else None
