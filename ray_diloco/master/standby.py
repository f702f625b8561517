"""A standby: it watches the master that leads, and gives its word when that one is silent."""

import logging
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal

from ray_diloco.errors import EntryMissing, GlobalError, HubError, PermanentHubError
from ray_diloco.hub.cards import read_card
from ray_diloco.hub.patience import Retry
from ray_diloco.hub.repository import Repository
from ray_diloco.master.lease import Lease
from ray_diloco.protocol.clock import Clock, Effect, Idle, Micros
from ray_diloco.protocol.global_card import GlobalCard
from ray_diloco.protocol.heartbeat import HEARTBEAT_LIMIT, Heartbeat
from ray_diloco.protocol.paths import HEARTBEAT_PATH

logger = logging.getLogger(__name__)

Verdict = Literal["take over", "over", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a commit shows of whoever leads. ``card`` None: nobody does yet."""

    commit: str
    card: GlobalCard | None
    beat: int


def watch(
    repository: Repository,
    retry: Retry,
    clock: Clock,
    *,
    lease: Micros,
    poll: Micros,
    stopped: Callable[[], bool],
) -> Generator[Effect, Any, Verdict]:
    """Look until the lease has run out, the run is over, or ``stopped``.

    Nobody's lease runs before there is a global: only the first master begins a run.
    """
    kept, seen = Lease(lease, look_every=poll), Seen(commit="", card=None, beat=0)
    while not stopped():
        try:
            seen = yield from _look(repository, retry, seen)
        except PermanentHubError:
            raise
        except HubError as error:
            retry.note(error)
        except GlobalError as error:
            logger.warning("%s", error)
        else:
            verdict = _verdict(seen, kept, clock.now())
            if verdict is not None:
                return verdict
        yield Idle(poll)
    return "stopped"


def _verdict(seen: Seen, kept: Lease, now: Micros) -> Verdict | None:
    card = seen.card
    if card is None or card.publication_id is None:
        return None
    if card.closed:
        return "over"
    if not kept.answered((card.master_epoch, card.publication_id, seen.beat), now):
        return None
    logger.warning("master %s was silent for its lease: taking over", card.master_id)
    return "take over"


def _look(repository: Repository, retry: Retry, seen: Seen) -> Generator[Effect, Any, Seen]:
    commit = yield from retry.asking(repository.head_commit, kind="look")
    if commit == seen.commit:
        return seen
    card = yield from read_card(repository, retry, commit)
    if card is None:
        return Seen(commit=commit, card=None, beat=0)
    beat = yield from _beat(repository, retry, card, commit)
    return Seen(commit=commit, card=card, beat=beat)


def _beat(
    repository: Repository, retry: Retry, card: GlobalCard, commit: str
) -> Generator[Effect, Any, int]:
    """The last beat of the epoch that leads; 0 before its first."""
    try:
        data = yield from retry.asking(
            lambda: repository.read(HEARTBEAT_PATH, commit=commit, limit=HEARTBEAT_LIMIT)
        )
        found = Heartbeat.from_json(data)
    except (EntryMissing, GlobalError):
        return 0
    return found.beat if found.master_epoch == card.master_epoch else 0
