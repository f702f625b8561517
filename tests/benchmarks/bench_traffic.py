"""What int4 and fragments save on slow links, at equal loss: bytes a token, the busiest moment of
a link, and the time. By hand; some minutes:

    python tests/benchmarks/bench_traffic.py --folder traffic

Each way trains on `experiment=traffic`'s cluster in virtual time, for the same number of virtual
seconds. A row counts what had happened when its held-out loss was first within 0.01 nat of the
best loss of whole fp32 models: tokens merged, virtual seconds, and the bytes of deltas and globals
that nodes had sent and fetched by then. The peak is the most that one node's link carried in any
stretch of so many virtual seconds (`--window`), a transfer's bytes spread over its time.
"""

import argparse
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

import ray_diloco
from ray_diloco.tensors.fragments import split
from ray_diloco.tensors.schema import StateSchema

WAYS = {
    "whole, fp32": (),
    "whole, int4": ("codec=int4",),
    "fragments, fp32": ("fragments=streaming",),
    "fragments, int4": ("fragments=streaming", "codec=int4"),
}
NEAR = 0.01
"""Nats within which losses count as equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """One transfer of one node: bytes between two virtual times, in seconds."""

    node: str
    began: float
    ended: float
    size: int
    up: bool

    def within(self, start: float, stop: float) -> float:
        """The bytes that fall between two times."""
        if self.ended <= self.began:
            return float(self.size if start <= self.began < stop else 0)
        shared = min(self.ended, stop) - max(self.began, start)
        return self.size * max(0.0, shared) / (self.ended - self.began)


def events_of(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def seconds(at: int) -> float:
    return at / 1e6


def curve(events: Iterable[dict[str, Any]]) -> Iterator[tuple[float, float, int]]:
    """Virtual seconds, held-out loss, tokens merged, at each evaluation."""
    for event in events:
        if event["event"] == "evaluation" and event["loss"] is not None:
            at = event.get("published_at", event["at"])
            yield seconds(at), event["loss"], event["tokens_total"]


def reached(events: list[dict[str, Any]], loss: float) -> tuple[float, int] | None:
    """When a loss was first reached, and after how many tokens; None: never."""
    return next(((at, tokens) for at, found, tokens in curve(events) if found <= loss), None)


def row_of(moved: list[Moved], at: float, tokens: int, window: float) -> dict[str, float]:
    until = [each for each in moved if each.began < at]
    up, down = (
        sum(each.within(0.0, at) for each in until if each.up is direction)
        for direction in (True, False)
    )
    return {
        "virtual seconds": round(at, 1),
        "tokens": tokens,
        "bytes up a token": round(up / tokens, 2),
        "bytes down a token": round(down / tokens, 2),
        "bytes a token": round((up + down) / tokens, 2),
        "peak up, bytes a second": round(peak([m for m in until if m.up], window)),
        "peak, bytes a second": round(peak(until, window)),
    }


def peak(moved: list[Moved], window: float) -> float:
    """The most of any node in any window, which begins or ends with a transfer."""
    most = 0.0
    for node in {each.node for each in moved}:
        own = [each for each in moved if each.node == node]
        starts = {each.began for each in own} | {each.ended - window for each in own}
        for start in starts:
            most = max(most, sum(each.within(start, start + window) for each in own))
    return most / window


class Sizes:
    """The bytes of a global: of the whole model, or of some fragments of it."""

    def __init__(self, model: Path, fragments: int) -> None:
        state = load_file(model)
        self._whole = model.stat().st_size
        self._parts = [
            sum(state[entry.name].nbytes for entry in part)
            for part in split(StateSchema.of_state(state), fragments)
        ]

    def of(self, event: dict[str, Any]) -> int:
        parts = event.get("fragments")
        return self._whole if parts is None else sum(self._parts[part] for part in parts)


def moved_in(events: list[dict[str, Any]], sizes: Sizes) -> list[Moved]:
    """Every delta and every global that went over a node's link."""
    delta_bytes = {
        (delta["node"], delta["local_step"]): delta["bytes"]
        for event in events
        if event["event"] == "publication"
        for delta in event["deltas"]
    }
    began: dict[str, float] = {}
    moved: list[Moved] = []
    for event in events:
        node, at = event["participant"], seconds(event["at"])
        match event["event"]:
            case "upload_started":
                began[node] = at
            case "delta_landed":
                size = delta_bytes.get((node, event["local_step"]), 0)
                moved.append(Moved(node=node, began=began[node], ended=at, size=size, up=True))
            case "global_fetched":
                start, size = seconds(event["began"]), sizes.of(event)
                moved.append(Moved(node=node, began=start, ended=at, size=size, up=False))
    return moved


def play(folder: Path, words: Iterable[str]) -> tuple[list[dict[str, Any]], list[Moved]]:
    overrides = ["experiment=traffic", "engine=inproc", "time=virtual", *words]
    result = ray_diloco.run(overrides, folder=folder)
    assert result.status == "done", result.numbers["error"]
    events = events_of(folder)
    config = ray_diloco.configure(overrides)
    return events, moved_in(events, Sizes(folder / "model.safetensors", config.diloco.fragments))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True, help="where the runs go")
    parser.add_argument("--seconds", type=float, default=240.0, help="virtual, of each run")
    parser.add_argument("--window", type=float, default=10.0, help="virtual seconds of a peak")
    parser.add_argument("--json", type=Path)
    parser.add_argument("overrides", nargs="*", help="of every run")
    given = parser.parse_args()
    words = ["run.max_steps=null", f"run.max_seconds={given.seconds}", *given.overrides]
    played = {
        way: play(given.folder / way.replace(", ", "-"), [*words, *own])
        for way, own in WAYS.items()
    }
    plain = min(loss for _, loss, _ in curve(played["whole, fp32"][0]))
    found: dict[str, Any] = {}
    for way, (events, moved) in played.items():
        end = reached(events, plain + NEAR)
        best = min(loss for _, loss, _ in curve(events))
        row = {} if end is None else row_of(moved, *end, given.window)
        found[way] = {**row, "best loss": round(best, 4)}
        print(way, found[way], flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
