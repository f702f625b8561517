"""A session that was killed has no result: what can be told of it all the same."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ray_diloco.experiment.events import read_events
from ray_diloco.experiment.legible import mapping_of, understood
from ray_diloco.experiment.run_files import EVENTS, SESSIONS, STATUS
from ray_diloco.protocol.fragments import steps_of
from ray_diloco.protocol.ranges import StepRanges

TRAFFIC = ("bytes_up", "bytes_down", "requests", "commits")


def killed_session(run_dir: Path, number: int, begun: Sequence[str]) -> dict[str, Any]:
    """Deltas, deaths and time up to its last event, traffic up to its last status. ``begun``: when
    each session of the run began, ISO 8601.
    """
    began = begun[number - 1]
    ended = begun[number] if number < len(begun) else None
    last, staleness = began, Counter[str]()
    restarts: dict[str, list[str]] = {}
    merged: dict[tuple[str, str], Counter[str]] = {}
    with understood(run_dir / SESSIONS, holds="a session of a run on each line"):
        began_at = datetime.fromisoformat(began)
    with understood(run_dir / EVENTS, holds="the events of a run"):
        for event in read_events(run_dir / EVENTS):
            if began <= event["wall_at"] and (ended is None or event["wall_at"] < ended):
                last = event["wall_at"]
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
        **_told_by(file, merged),
    }


def _count(deltas: Sequence[dict[str, Any]], merged: dict[tuple[str, str], Counter[str]]) -> None:
    """Adds what was merged of each incarnation."""
    for delta in deltas:
        counts = merged.setdefault((delta["node"], delta["nonce"]), Counter())
        steps = len(steps_of(StepRanges.parse(delta["covers"])))
        counts.update(local_steps=steps, tokens=delta["tokens"], deltas_landed=1)


def _lives(
    status: dict[str, Any], merged: dict[tuple[str, str], Counter[str]]
) -> list[dict[str, Any]]:
    """What each incarnation did in the session: what it said of itself last, or what was merged of
    it when that is more, since a status is up to a second old.
    """
    said = {(each["node_id"], each["nonce"]): each for each in status["nodes"] if each["nonce"]}
    lives: list[dict[str, Any]] = []
    for node_id, nonce in sorted(said.keys() | merged.keys()):
        own, counts = said.get((node_id, nonce)), merged.get((node_id, nonce), Counter())
        before, steps, tokens = 0, 0, 0
        if own is not None:
            before = own["tokens_before"]
            steps, tokens = own["local_step"] - own["steps_before"], own["tokens"] - before
        lives.append(
            {
                "node_id": node_id,
                "nonce": nonce,
                "local_steps": max(steps, counts["local_steps"]),
                "tokens": before + max(tokens, counts["tokens"]),
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


def _told_by(file: Path, merged: dict[tuple[str, str], Counter[str]]) -> dict[str, Any]:
    """Traffic and incarnations, by the last status where there is one."""
    holds, status = "the status of a run", {"nodes": [], "master": None}
    if not file.exists():
        return {**_traffic(status), "lives": _lives(status, merged)}
    with understood(file, holds=holds):
        status = mapping_of(file, holds=holds, needs={"nodes": list, "master": object})
        return {**_traffic(status), "lives": _lives(status, merged)}


def _traffic(status: dict[str, Any]) -> dict[str, Any]:
    nodes, master = status["nodes"], status["master"]
    told = [*nodes, *([master] if master is not None else [])]
    return {
        **{name: sum(each[name] for each in told) for name in TRAFFIC},
        "nodes": {each["node_id"]: {name: each[name] for name in TRAFFIC} for each in nodes},
    }
