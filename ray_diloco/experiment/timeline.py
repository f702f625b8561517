"""`timeline.json`: the run as Chrome trace events, for Perfetto (ui.perfetto.dev).

A process for each node, with a row each for compute, waiting, uploads and downloads; one for the
master with its rounds. Arrows lead from a delta to the round that merges it, and from a global to
its installations. Times are the run's, in microseconds. Format: "Trace Event Format", Google, 2016.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from ray_diloco.protocol.run import Event

TraceEvent = dict[str, Any]

COMPUTE, WAITING, UPLOAD, DOWNLOAD = "compute", "waiting", "upload", "download"
ROUNDS = "rounds"
_ROWS = {COMPUTE: 1, WAITING: 2, UPLOAD: 3, DOWNLOAD: 4, ROUNDS: 1}
_SENDS = ("upload_started", "upload_resumed")
_FATES = ("delta_landed", "delta_refused")
_NEXT_LIFE: Event = {"event": "node_started", "at": 0}
LEAST = 1
"""Microseconds: what takes no time is shown as long as this, so that an arrow has something to hold
on to.
"""


def timeline(events: Iterable[Event]) -> dict[str, Any]:
    """The whole file as one JSON value."""
    ordered = sorted(events, key=lambda event: (event["at"], event["participant"]))
    names = sorted({event["participant"] for event in ordered}, key=_masters_last)
    processes = {name: number for number, name in enumerate(names, start=1)}
    traced = [*_names(processes)]
    for name, process in processes.items():
        own = [event for event in ordered if event["participant"] == name]
        traced += _rounds(own, process) if is_master(name) else _node(own, process)
    traced += _arrows(ordered, processes)
    return {"traceEvents": traced, "displayTimeUnit": "ms"}


def is_master(participant: str) -> bool:
    return participant.endswith("/master")


def _masters_last(participant: str) -> tuple[bool, int, str]:
    return is_master(participant), len(participant), participant


def _names(processes: dict[str, int]) -> Iterator[TraceEvent]:
    for name, process in processes.items():
        rows = (ROUNDS,) if is_master(name) else (COMPUTE, WAITING, UPLOAD, DOWNLOAD)
        yield _meta("process_name", process, 0, name)
        for row in rows:
            yield _meta("thread_name", process, _ROWS[row], row)


def _meta(kind: str, process: int, thread: int, name: str) -> TraceEvent:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _span(row: str, process: int, name: str, start: int, end: int, **told: Any) -> TraceEvent:
    return {
        "ph": "X",
        "cat": row,
        "name": name,
        "pid": process,
        "tid": _ROWS[row],
        "ts": start,
        "dur": max(LEAST, end - start),
        "args": told,
    }


def _mark(row: str, process: int, name: str, at: int) -> TraceEvent:
    place = {"pid": process, "tid": _ROWS[row], "ts": at, "s": "t"}
    return {"ph": "i", "cat": row, "name": name, **place}


# -- a node ----------------------------------------------------------------------------------------


def _node(events: list[Event], process: int) -> Iterator[TraceEvent]:
    yield from _compute(events, process)
    yield from _uploads(events, process)
    for event in events:
        match event:
            case {"event": "waited", "began": began, "at": at}:
                yield _span(WAITING, process, "waits", began, at)
            case {"event": "global_fetched", "began": began, "at": at, "outer_step": step}:
                yield _span(DOWNLOAD, process, f"global {step}", began, at)
            case {"event": "install", "at": at, "outer_step": step}:
                yield _mark(COMPUTE, process, f"install global {step}", at)
            case _:
                pass


def _uploads(events: list[Event], process: int) -> Iterator[TraceEvent]:
    """Each to its fate. One whose node died goes on to the last that was heard of it."""
    sent: Event | None = None
    heard = 0
    for event in [*events, _NEXT_LIFE]:
        kind, at = event["event"], event["at"]
        if sent is not None and kind in (*_FATES, *_SENDS, "node_started"):
            told = {"covers": sent["covers"], "fate": kind if kind in _FATES else "cut off"}
            end = at if kind in _FATES else heard
            yield _span(UPLOAD, process, f"delta {sent['local_step']}", sent["at"], end, **told)
            sent = None
        sent = event if kind in _SENDS else sent
        heard = at


def _compute(events: list[Event], process: int) -> Iterator[TraceEvent]:
    """From one boundary to the next, without the time spent waiting."""
    start: int | None = None
    first = 0
    for event in events:
        at = event["at"]
        match event:
            case {"event": "node_started", "first_step": step}:
                start, first = at, step + 1
            case {"event": "waited", "began": began}:
                if start is not None and began > start:
                    yield _span(COMPUTE, process, f"from step {first}", start, began)
                start = at
            case {"event": "upload_started" | "node_stopping", "local_step": step}:
                if start is not None and at > start:
                    yield _span(COMPUTE, process, f"steps {first}-{step}", start, at)
                start, first = at, step + 1
            case _:
                pass


# -- the master ------------------------------------------------------------------------------------


def _rounds(events: list[Event], process: int) -> Iterator[TraceEvent]:
    for event in events:
        match event:
            case {"event": "publication", "at": at, "outer_step": step, "deltas": deltas}:
                told = {"deltas": len(deltas), "stop": event.get("stop")}
                yield _span(ROUNDS, process, f"outer step {step}", event["began"], at, **told)
            case {"event": "opened", "at": at, "outer_step": step}:
                yield _span(ROUNDS, process, f"outer step {step}", at, at)
            case _:
                pass


# -- arrows ----------------------------------------------------------------------------------------


def _arrows(events: list[Event], processes: dict[str, int]) -> Iterator[TraceEvent]:
    uploads: dict[tuple[str, int], list[int]] = {}
    published: dict[int, tuple[int, int]] = {}
    for event in events:
        at, process = event["at"], processes[event["participant"]]
        match event:
            case {"event": "upload_started" | "upload_resumed", "local_step": step}:
                uploads.setdefault((event["participant"], step), []).append(at)
            case {"event": "opened", "outer_step": step}:
                published[step] = (process, at)
            case {"event": "publication", "outer_step": step, "deltas": deltas}:
                published.setdefault(step, (process, max(event["began"], at - LEAST)))
                for delta in deltas:
                    key, began = (delta["node"], delta["local_step"]), event["began"]
                    sent = [start for start in uploads.get(key, ()) if start <= began]
                    if sent:
                        start = (processes[key[0]], _ROWS[UPLOAD], sent[-1])
                        end = (process, _ROWS[ROUNDS], began)
                        yield from _arrow(f"delta {key[0]} {key[1]}", start, end)
            case {"event": "global_fetched", "outer_step": step} if step in published:
                master, when = published[step]
                end = (process, _ROWS[DOWNLOAD], event["began"])
                name = f"global {step} {event['participant']} {at}"
                yield from _arrow(name, (master, _ROWS[ROUNDS], when), end)
            case _:
                pass


def _arrow(
    name: str, start: tuple[int, int, int], end: tuple[int, int, int]
) -> Iterator[TraceEvent]:
    for phase, (process, thread, at) in (("s", start), ("f", end)):
        arrow = {"ph": phase, "cat": "arrow", "name": name.split()[0], "id": name}
        yield {**arrow, "bp": "e", "pid": process, "tid": thread, "ts": at}
