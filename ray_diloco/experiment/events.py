"""`events.jsonl`: one line an event, flushed as it comes."""

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ray_diloco.protocol.clock import Clock
from ray_diloco.protocol.run import Event


class EventLog:
    """Appends events; each keeps its participant's time ``at`` and gets ``wall_at``, the time at
    which it came here (ISO 8601 UTC).
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._clock = clock

    def keep(self, events: Iterable[Event]) -> None:
        wall_at = self._clock.utc()
        for event in events:
            self._file.write(as_json({"wall_at": wall_at, **event}) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_events(path: Path) -> Iterator[Event]:
    """All events of a file, one after the other; a line that a crash cut short is left out."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield json.loads(line)


def as_json(value: Any, *, indent: int | None = None) -> str:
    """JSON that every reader takes: numbers that it has no word for become text."""
    return json.dumps(_plain(value), indent=indent, allow_nan=False)


def _plain(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case dict():
            return {key: _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case _:
            return value
