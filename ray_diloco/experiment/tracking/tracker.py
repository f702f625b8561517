"""The seam to a service: what a tracker is, and a thread of its own for each."""

import logging
import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Literal, Protocol

from ray_diloco.experiment.tracking.points import Point

logger = logging.getLogger(__name__)

End = Literal["done", "stopped", "failed"]
PATIENCE_SECONDS = 60.0
"""How long the end of a run waits for a service to take the rest."""


class Tracker(Protocol):
    """One run at one service. Whatever the service's package throws may come up."""

    def keep(self, points: Sequence[Point]) -> None: ...

    def end(self, status: End) -> None:
        """The run is over; called once, after the last points."""
        ...


class Beside:
    """A tracker in a thread of its own: a slow service holds up nobody, and one that fails loses
    its points only.
    """

    def __init__(self, tracker: Tracker, *, name: str) -> None:
        self._tracker = tracker
        self._name = name
        self._waiting: SimpleQueue[Sequence[Point] | End] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"tracking {name}", daemon=True)
        self._ended = False
        self._thread.start()

    def keep(self, points: Sequence[Point]) -> None:
        """Returns at once."""
        if points:
            self._waiting.put(points)

    def end(self, status: End) -> None:
        """Waits until the rest is with the service, but not for ever. The first call counts."""
        if self._ended:
            return
        self._ended = True
        self._waiting.put(status)
        self._thread.join(PATIENCE_SECONDS)
        if self._thread.is_alive():
            logger.warning(
                "%s did not take the rest of the run within %s s", self._name, PATIENCE_SECONDS
            )

    def _work(self) -> None:
        takes = True
        while True:
            given = self._waiting.get()
            try:
                if isinstance(given, str):
                    self._tracker.end(given)
                elif takes:
                    self._tracker.keep(given)
            except Exception as error:
                takes = False
                logger.warning("%s gets no more of this run: %s", self._name, error)
            if isinstance(given, str):
                return
