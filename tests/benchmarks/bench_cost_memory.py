"""Extra anonymous memory in states: at a boundary, all that the exchange keeps included, and of a
round.

The work is done by a process of its own, which does nothing else. Another one reads its RssAnon
(/proc/<pid>/status) about every millisecond meanwhile; files on tmpfs are no anonymous memory. The
zero is what the process holds with the model loaded and nothing of the exchange begun.
"""

import gc
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from bench_cost_node import Forgetful, SteppedNode, SteppedPeer, Steps, made, publish
from bench_cost_round import whole_round
from bench_cost_subjects import (
    Layers,
    first_global,
    peers_round,
    size_of,
    write_deltas,
)

PAUSE = 0.001
BOUNDARIES = 2


def anonymous_bytes(pid: int) -> int:
    """RssAnon; 0 when the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    kilobytes = (line.split()[1] for line in lines if line.startswith("RssAnon:"))
    return int(next(kilobytes, "0")) * 1024


def grown(words: list[str]) -> int:
    """By how much a process has grown at most, from before its preparation, while it works."""
    with subprocess.Popen(
        [sys.executable, __file__, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        zero = 0
        for mark in ("loaded", "prepared"):
            assert child.stdout.readline() == f"{mark}\n", f"{words} was never {mark}"
            zero = zero or anonymous_bytes(child.pid)
            child.stdin.write("go on\n")
            child.stdin.flush()
        most = zero
        while child.poll() is None:
            most = max(most, anonymous_bytes(child.pid))
            time.sleep(PAUSE)
        assert child.returncode == 0, f"{words} failed"
    return most - zero


def memory_costs(parameters: int, folder: Path, *, counts: list[int]) -> dict[str, Any]:
    """In states."""
    model = Layers(parameters)
    state = {name: each.detach() for name, each in model.state_dict().items()}
    size = size_of(state)
    del model
    write_deltas(state, max(counts), folder / "deltas")
    works = ["boundary", "boundary-with-a-checkpoint", "boundary-reference"]
    works += [f"round-{count}{who}" for count in counts for who in ("", "-reference")]
    return {work: round(grown([work, str(parameters), str(folder)]) / size, 2) for work in works}


def boundaries(model: Layers, folder: Path, *, checkpoints: bool) -> Iterator[None]:
    repository, training = Forgetful(), Steps(model)
    publish(repository, 0, model.state_dict(), made(folder / "node"))
    yield
    stepped = SteppedNode(
        model,
        folder / "node",
        checkpoints=checkpoints,
        repository=repository,
        training=training,
    )
    with stepped.running() as node:
        yield
        for _ in range(BOUNDARIES):
            node.boundary()
    yield


def peers_boundaries(model: Layers, folder: Path) -> Iterator[None]:
    yield
    with SteppedPeer(model, made(folder / "peer")).running() as node:
        yield
        for _ in range(BOUNDARIES):
            node.boundary()
    yield


def rounds(model: Layers, folder: Path, *, count: int, reference: bool) -> Iterator[None]:
    state = {name: each.detach() for name, each in model.state_dict().items()}
    deltas = write_deltas(state, count, folder / "deltas")
    schema, previous = first_global(state, made(folder / "global"))
    yield
    if reference:
        work = peers_round(state, deltas, folder / "peer")()
    else:
        work = whole_round(deltas, schema, previous, folder / "next")
    yield
    work()
    yield


def work_of(name: str, parameters: int, folder: Path) -> Iterator[None]:
    model = Layers(parameters) if parameters > 1 else Layers(1, width=8)
    match name.split("-"):
        case ["boundary"]:
            return boundaries(model, folder, checkpoints=False)
        case ["boundary", "with", "a", "checkpoint"]:
            return boundaries(model, folder, checkpoints=True)
        case ["boundary", "reference"]:
            return peers_boundaries(model, folder)
        case ["round", count, *reference]:
            return rounds(model, folder, count=int(count), reference=bool(reference))
    raise AssertionError(name)


def main() -> None:
    torch.set_num_threads(1)
    name, parameters, folder = sys.argv[1:]
    list(work_of(name, 1, made(Path(folder) / f"{name}-warm")))  # what libraries allocate once
    work = work_of(name, int(parameters), Path(folder))
    for mark in ("loaded", "prepared"):
        next(work)
        gc.collect()
        print(mark, flush=True)
        sys.stdin.readline()
    next(work)


if __name__ == "__main__":
    main()
