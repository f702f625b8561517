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
    sent: Event | None = None
    for event in events:
        match event:
            case {"event": "waited", "began": began, "at": at}:
                yield _span(WAITING, process, "waits", began, at)
            case {"event": "global_fetched", "began": began, "at": at, "outer_step": step}:
                yield _span(DOWNLOAD, process, f"global {step}", began, at)
            case {"event": "upload_started" | "upload_resumed"}:
                sent = event
            case {"event": "delta_landed" | "delta_refused", "at": at} if sent is not None:
                name = f"delta {sent['local_step']}"
                told = {"covers": sent["covers"], "fate": event["event"]}
                yield _span(UPLOAD, process, name, sent["at"], at, **told)
                sent = None
            case {"event": "install", "at": at, "outer_step": step}:
                yield _mark(COMPUTE, process, f"install global {step}", at)
            case _:
                pass


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
    uploads = {
        (event["participant"], event["local_step"]): event["at"]
        for event in events
        if event["event"] in ("upload_started", "upload_resumed")
    }
    published: dict[int, tuple[int, int]] = {}
    for event in events:
        at, process = event["at"], processes[event["participant"]]
        match event:
            case {"event": "opened", "outer_step": step}:
                published[step] = (process, at)
            case {"event": "publication", "outer_step": step, "deltas": deltas}:
                published.setdefault(step, (process, max(event["began"], at - LEAST)))
                for delta in deltas:
                    key = (delta["node"], delta["local_step"])
                    if key in uploads:
                        start = (processes[key[0]], _ROWS[UPLOAD], uploads[key])
                        end = (process, _ROWS[ROUNDS], event["began"])
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
