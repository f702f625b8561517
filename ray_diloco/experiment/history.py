"""What the earlier sessions of a run left in its folder. A run that is resumed goes on there."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray_diloco.errors import UsageError
from ray_diloco.experiment.events import read_events
from ray_diloco.experiment.killed import killed_session
from ray_diloco.experiment.legible import lines_of, mapping_of, understood
from ray_diloco.experiment.run_files import EVENTS, RESULT, SESSIONS
from ray_diloco.protocol.clock import MICROS_PER_SECOND
from ray_diloco.protocol.run import Event

Session = dict[str, Any]
"""The numbers of one session; see `experiment.sessions`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """``sessions``: of each its numbers; of one that was killed what its events and its last status
    tell. ``evaluations``, ``rejections``: the events of all of them. ``ended_at``: the run's time,
    in microseconds, up to which anything is known. ``published``: a global was. ``result``: what
    the last one left, None when it was killed.
    """

    sessions: tuple[Session, ...] = ()
    evaluations: tuple[Event, ...] = ()
    rejections: tuple[Event, ...] = ()
    ended_at: int = 0
    published: bool = False
    result: dict[str, Any] | None = None


NO_HISTORY = History()


def read_history(run_dir: Path) -> History:
    """Nothing in a folder without a run. UsageError for a file that is broken."""
    if not (run_dir / EVENTS).exists():
        return NO_HISTORY
    ended_at, evaluations, rejections = 0, list[Event](), list[Event]()
    published = False
    with understood(run_dir / EVENTS, holds="the events of a run"):
        for event in read_events(run_dir / EVENTS):
            ended_at = max(ended_at, event["at"])
            match event["event"]:
                case "evaluation":
                    evaluations.append(event)
                case "delta_rejected":
                    rejections.append(event)
                case "publication":
                    published = True
                case _:
                    pass
    begun, known = begun_at(run_dir), _known(run_dir)
    numbers = range(1, len(begun) + 1)
    if unlisted := sorted(known.keys() - set(numbers)):
        raise UsageError(
            f"{run_dir / SESSIONS}: expected a line for each session of the run, of which "
            f"{RESULT} has number {unlisted[0]}, too"
        )
    ends = [end for each in known.values() if (end := each.get("ended_seconds")) is not None]
    killed = [number for number in numbers if number not in known]
    known |= {number: killed_session(run_dir, number, begun) for number in killed}
    return History(
        sessions=tuple(known[number] for number in numbers),
        evaluations=tuple(evaluations),
        rejections=tuple(rejections),
        published=published,
        ended_at=max([ended_at, *(round(each * MICROS_PER_SECOND) for each in ends)]),
        result=_read(run_dir / RESULT) if (run_dir / RESULT).exists() else None,
    )


def _known(run_dir: Path) -> dict[int, Session]:
    """By number, the sessions that the newest result has, killed ones among them; it has the
    numbers of all before it.
    """
    found = list(_results(run_dir))
    if not found:
        return {}
    with understood(found[-1], holds="the result of a run"):
        sessions = {int(each["session"]): each for each in _read(found[-1]).get("sessions", ())}
        for each in sessions.values():
            ended = each.get("ended_seconds")
            if not (ended is None or isinstance(ended, int | float)):
                raise TypeError(f"ended_seconds={ended!r}")
        return sessions


def kept_result(run_dir: Path, number: int) -> Path:
    """Where the result that a run had after so many sessions stays when it goes on."""
    return run_dir / f"result.{number}.json"


def begun_at(run_dir: Path) -> list[str]:
    """When each session began to be recorded, by the clock on the wall."""
    file = run_dir / SESSIONS
    if not file.exists():
        return []
    lines = lines_of(file, holds="a session of a run on each line", needs={"wall_at": str})
    return [line["wall_at"] for line in lines]


def _results(run_dir: Path) -> Iterator[Path]:
    numbered = [each for each in run_dir.glob("result.*.json") if each.suffixes[0][1:].isdigit()]
    yield from sorted(numbered, key=lambda path: int(path.suffixes[0][1:]))
    if (run_dir / RESULT).exists():
        yield run_dir / RESULT


def _read(path: Path) -> dict[str, Any]:
    return mapping_of(path, holds="the result of a run", needs={"status": str, "nodes": dict})
