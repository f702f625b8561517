"""The events of one participant, kept until they are fetched."""

import threading
from typing import Any

from ray_diloco.protocol.clock import Clock
from ray_diloco.protocol.run import Event


class EventLog:
    """Records in the participant's threads, is drained from any."""

    def __init__(self, participant: str, clock: Clock) -> None:
        self._participant = participant
        self._clock = clock
        self._lock = threading.Lock()
        self._events: list[Event] = []

    def record(self, event: str, **fields: Any) -> None:
        """Keep one event with the present time. JSON values only."""
        line = {"event": event, "participant": self._participant, "at": int(self._clock.now())}
        with self._lock:
            self._events.append(line | fields)

    def drain(self) -> list[Event]:
        """What was recorded since the last call, in order."""
        with self._lock:
            events, self._events = self._events, []
        return events
