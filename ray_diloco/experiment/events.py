"""`events.jsonl`: one line an event, flushed as it comes."""

import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ray_diloco.experiment.legible import lines_of
from ray_diloco.protocol.clock import Clock
from ray_diloco.protocol.run import Event

_BLOCK = 1 << 16


class EventLog:
    """Appends events; each keeps its participant's time ``at`` and gets ``wall_at``, the time at
    which it came here (ISO 8601 UTC). A number that is not finite is null, and its field is named
    in ``not_finite``.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        cut_torn_line(path)
        self._file = path.open("a", encoding="utf-8")
        self._clock = clock

    def keep(self, events: Iterable[Event]) -> None:
        wall_at = self._clock.utc()
        for event in events:
            self._file.write(as_json({"wall_at": wall_at, **event} | _not_finite(event)) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_events(path: Path) -> Iterator[Event]:
    """All events of a file, one after the other; a line that a crash cut short is left out.
    UsageError for what is no such file.
    """
    return lines_of(path, holds="an event of a run on each line", needs={"event": str, "at": int})


def cut_torn_line(path: Path) -> None:
    """Take away the half line that a crash may have left at the end of a file of lines, before
    something is appended to it. Nothing happens to a file that is not there.
    """
    if not path.exists():
        return
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        kept = end
        while kept > 0:
            start = max(0, kept - _BLOCK)
            file.seek(start)
            newline = file.read(kept - start).rfind(b"\n")
            kept = start + newline + 1 if newline >= 0 else start
            if newline >= 0:
                break
        if kept < end:
            file.truncate(kept)


def as_json(value: Any, *, indent: int | None = None) -> str:
    """JSON that every reader takes; see `plain`."""
    return json.dumps(plain(value), indent=indent, allow_nan=False)


def plain(value: Any) -> Any:
    """What JSON has a word for: a number that is not finite becomes None."""
    match value:
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {key: plain(each) for key, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case _:
            return value


def _not_finite(event: Event) -> Event:
    """Names the fields that are null because they were no numbers."""
    names = [
        name
        for name, value in event.items()
        if isinstance(value, float) and not math.isfinite(value)
    ]
    return {"not_finite": names} if names else {}
