"""The heartbeat of a master that has nothing to publish."""

from collections.abc import Generator
from typing import Any

from ray_diloco.errors import HubError, ParentConflict, PermanentHubError, RevisionMissing
from ray_diloco.hub.cards import read_card
from ray_diloco.hub.patience import Retry
from ray_diloco.hub.repository import Addition, Repository
from ray_diloco.master.outer_loop import OuterLoop
from ray_diloco.master.publishing import Publisher, superseded
from ray_diloco.protocol.clock import Access, Clock, Effect, Micros
from ray_diloco.protocol.heartbeat import Heartbeat
from ray_diloco.protocol.paths import HEARTBEAT_PATH

_AGAIN = 8
"""After a beat that did not land the next try comes within the lease divided by this."""


class Heart:
    """Beats when there was no publication for half of the lease. One lane at a time."""

    def __init__(
        self,
        repository: Repository,
        retry: Retry,
        clock: Clock,
        *,
        loop: OuterLoop,
        publisher: Publisher,
        master_id: str,
        lease: Micros,
    ) -> None:
        self._repository = repository
        self._retry = retry
        self._clock = clock
        self._loop = loop
        self._publisher = publisher
        self._master_id = master_id
        self._lease = lease
        self._beat = 0
        self._sign = loop.card.publication_id
        self.due = Micros(clock.now() + lease // 2)

    def listen(self) -> None:
        """A publication is a sign of life as well."""
        if self._loop.card.publication_id != self._sign:
            self._sign = self._loop.card.publication_id
            self.due = Micros(self._clock.now() + self._lease // 2)

    def beat(self) -> Generator[Effect, Any, None]:
        """Commit a beat, unless it turns out that another master leads: SupersededError."""
        again = Micros(self._clock.now() + self._lease // _AGAIN)
        try:
            yield from self._commit()
        except PermanentHubError:
            raise
        except (ParentConflict, RevisionMissing):
            self.due = self._clock.now()
        except HubError as error:
            self._retry.note(error)
            self.due = again
        else:
            self.due = Micros(self._clock.now() + self._lease // 2)

    def _commit(self) -> Generator[Effect, Any, None]:
        commit = yield from self._retry.asking(self._repository.head_commit, kind="look")
        found = yield from read_card(self._repository, self._retry, commit)
        card = self._loop.card
        if self._loop.is_late(found):
            raise RevisionMissing(f"{commit[:12]} is older than the last publication")
        if not self._loop.is_current(found) and not self._publisher.is_own(found, card):
            raise superseded(self._repository, found)
        self._beat += 1
        sign = Heartbeat(master_id=self._master_id, master_epoch=card.master_epoch, beat=self._beat)
        addition = Addition(path=HEARTBEAT_PATH, source=sign.to_json())
        yield Access(
            lambda: self._repository.commit(
                f"heartbeat {self._beat}", additions=[addition], parent=commit
            )
        )
        self._publisher.spend()
