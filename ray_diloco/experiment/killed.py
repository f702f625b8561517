"""A session that was killed has no result: what can be told of it all the same."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypedDict

from ray_diloco.experiment.events import read_events
from ray_diloco.experiment.legible import mapping_of, understood
from ray_diloco.experiment.run_files import EVENTS, SESSIONS, STATUS
from ray_diloco.protocol.fragments import steps_of
from ray_diloco.protocol.ranges import StepRanges
from ray_diloco.protocol.run import Event

TRAFFIC = ("bytes_up", "bytes_down", "requests", "commits")


def killed_session(run_dir: Path, number: int, begun: Sequence[str]) -> dict[str, Any]:
    """Deltas, deaths and time up to its last event, traffic up to its last status, and of each
    incarnation the most that either tells. ``begun``: when each session of the run began, ISO 8601.
    """
    began = begun[number - 1]
    ended = begun[number] if number < len(begun) else None
    last, staleness = began, Counter[str]()
    restarts: dict[str, list[str]] = {}
    merged: dict[tuple[str, str], Counter[str]] = {}
    heard = _Heard()
    with understood(run_dir / SESSIONS, holds="a session of a run on each line"):
        began_at = datetime.fromisoformat(began)
    with understood(run_dir / EVENTS, holds="the events of a run"):
        for event in read_events(run_dir / EVENTS):
            if began <= event["wall_at"] and (ended is None or event["wall_at"] < ended):
                last = event["wall_at"]
                heard.hear(event)
                if event["event"] == "publication":
                    staleness.update(str(delta["staleness"]) for delta in event["deltas"])
                    _count(event["deltas"], merged)
                elif event["event"] == "crashed" and "reason" in event:
                    restarts.setdefault(event["participant"], []).append(event["reason"])
        taken = datetime.fromisoformat(last) - began_at
    file = run_dir / STATUS if ended is None else kept_status(run_dir, number)
    return {
        "session": number,
        "status": "killed",
        "wall_seconds": taken.total_seconds(),
        "wall_start_seconds": 0.0,
        "deltas_merged": staleness.total(),
        "staleness": dict(staleness),
        "restarts": restarts,
        **_told_by(file, merged, heard),
    }


def with_ends(
    events: Iterable[Event], sessions: Sequence[dict[str, Any]], begun: Sequence[str]
) -> Iterator[Event]:
    """The events of a whole run, and after those of each session that was killed one that says
    so, and a ``node_failed`` for each of its incarnations, which could not say so themselves.
    ``begun``: as `killed_session` has it.
    """
    over = 0
    for event in events:
        earlier = bisect_right(begun, event["wall_at"]) - 1
        for session in sessions[over:earlier]:
            yield from _ends(session)
        over = max(over, earlier)
        yield event


def _ends(session: dict[str, Any]) -> Iterator[Event]:
    if session["status"] == "killed":
        yield {"event": "session_killed"}
    for life in session.get("lives", ()):
        if "local_step" in life:
            told = {name: life[name] for name in ("nonce", "local_step")}
            yield {"event": "node_failed", "participant": life["node_id"], **told}


class _Words(TypedDict):
    """``start``: the local step from which an incarnation counted on in the session;
    ``local_step``: the last that it spoke of. ``tokens``: of the whole incarnation, told when it
    failed; ``sent``: of the uploads that it began.
    """

    start: int
    local_step: int
    tokens: int
    sent: int


class _Heard:
    """What the events of nodes tell of their incarnations."""

    def __init__(self) -> None:
        self.words: dict[tuple[str, str], _Words] = {}
        self._now: dict[str, _Words] = {}
        self._sent_up_to: dict[tuple[str, int], int] = {}

    def hear(self, event: Event) -> None:
        node = event["participant"]
        if event["event"] == "node_started":
            resumed = event["resumed"]
            start = event["first_step"] if resumed is None else resumed
            fresh = _Words(start=start, local_step=start, tokens=0, sent=0)
            self._now[node] = self.words.setdefault((node, event["nonce"]), fresh)
        elif node in self._now and "local_step" in event:
            words = self._now[node]
            words["local_step"] = max(words["local_step"], event["local_step"])
            words["tokens"] = max(words["tokens"], event.get("tokens", 0))
            if event["event"] == "upload_started":
                self._count_upload(node, words, event)

    def _count_upload(self, node: str, words: _Words, event: Event) -> None:
        """Once, though a delta that was refused goes out again within a later one."""
        covers, place = StepRanges.parse(event["covers"]), (node, event.get("fragment", 0))
        if covers and covers.spans[0][0] > self._sent_up_to.get(place, words["start"]):
            words["sent"] += event["tokens"]
            self._sent_up_to[place] = covers.last


def _count(deltas: Sequence[dict[str, Any]], merged: dict[tuple[str, str], Counter[str]]) -> None:
    """Adds what was merged of each incarnation."""
    for delta in deltas:
        counts = merged.setdefault((delta["node"], delta["nonce"]), Counter())
        steps = steps_of(StepRanges.parse(delta["covers"]))
        counts.update(local_steps=len(steps), tokens=delta["tokens"], deltas_landed=1)
        counts["last"] = max(counts["last"], steps.last)


def _lives(
    status: dict[str, Any], merged: dict[tuple[str, str], Counter[str]], heard: _Heard
) -> list[dict[str, Any]]:
    """What each incarnation did in the session: what it said of itself last, or what its events
    tell, or what was merged of it when that is more, since a status is up to a second old.
    """
    said = {(each["node_id"], each["nonce"]): each for each in status["nodes"] if each["nonce"]}
    lives: list[dict[str, Any]] = []
    for of in sorted(said.keys() | merged.keys() | heard.words.keys()):
        own, counts = said.get(of), merged.get(of, Counter[str]())
        words = heard.words.get(of, _Words(start=0, local_step=0, tokens=0, sent=0))
        before, steps, tokens = 0, 0, 0
        if own is not None:
            before = own["tokens_before"]
            steps, tokens = own["local_step"] - own["steps_before"], own["tokens"] - before
        last = max(own["local_step"] if own else 0, counts["last"], words["local_step"])
        lives.append(
            {
                "node_id": of[0],
                "nonce": of[1],
                "local_step": last,
                "local_steps": max(
                    steps, counts["local_steps"], words["local_step"] - words["start"]
                ),
                "tokens": before
                + max(tokens, counts["tokens"], words["tokens"] - before, words["sent"]),
                "tokens_before": before,
                "deltas_landed": counts["deltas_landed"],
            }
        )
    return lives


def keep_last_status(run_dir: Path, number: int, *, killed: bool) -> None:
    """Put away the status of the session ``number`` before the next one writes its own."""
    status = run_dir / STATUS
    if killed and status.exists():
        status.replace(kept_status(run_dir, number))
    status.unlink(missing_ok=True)


def kept_status(run_dir: Path, number: int) -> Path:
    """Where the last status of a session that was killed stays when the run goes on."""
    return run_dir / f"status.{number}.json"


def _told_by(
    file: Path, merged: dict[tuple[str, str], Counter[str]], heard: _Heard
) -> dict[str, Any]:
    """Traffic and incarnations, by the last status where there is one."""
    holds, status = "the status of a run", {"nodes": [], "master": None}
    if not file.exists():
        return {**_traffic(status), "lives": _lives(status, merged, heard)}
    with understood(file, holds=holds):
        status = mapping_of(file, holds=holds, needs={"nodes": list, "master": object})
        return {**_traffic(status), "lives": _lives(status, merged, heard)}


def _traffic(status: dict[str, Any]) -> dict[str, Any]:
    nodes, master = status["nodes"], status["master"]
    told = [*nodes, *([master] if master is not None else [])]
    return {
        **{name: sum(each[name] for each in told) for name in TRAFFIC},
        "nodes": {each["node_id"]: {name: each[name] for name in TRAFFIC} for each in nodes},
    }
