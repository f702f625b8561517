"""Squashing the history: what was deleted takes storage until its commits are gone."""

import logging
from collections.abc import Generator
from typing import Any

from ray_diloco.errors import ParentConflict, QuotaExceeded, TransientHubError
from ray_diloco.hub.patience import Retry
from ray_diloco.hub.repository import Repository
from ray_diloco.protocol.clock import Access, Effect

logger = logging.getLogger(__name__)


class Squasher:
    """``every`` so many commits, of all participants together; 0: never. Call it between rounds,
    when this master reads nothing.
    """

    def __init__(self, repository: Repository, retry: Retry, *, every: int) -> None:
        self._repository = repository
        self._retry = retry
        self._every = every
        self._at_last = 0

    def squash_when_due(self, changes: int) -> Generator[Effect, Any, None]:
        """``changes``: how many commits of others were seen so far."""
        commits = changes + self._repository.traffic.commits
        if not self._every or commits - self._at_last < self._every:
            return
        try:
            yield Access(lambda: self._repository.squash("squashed by the master"))
        except (TransientHubError, QuotaExceeded, ParentConflict) as error:
            self._retry.note(error)
            return
        logger.info("the history was squashed after %d commits", commits - self._at_last)
        self._at_last = changes + self._repository.traffic.commits
