"""What the exchange costs, beside the public package `speedtronic` 2.0.0 on the same state.

    python tests/benchmarks/bench_cost.py --params 10,50,100 --json costs.json
    python tests/benchmarks/bench_cost.py --params 10 --what node,round --samples 3

Needs the extra `interop`. The two take turns in one process tree, with torch on one thread, as
nodes and masters run. Files lie on tmpfs (`--folder`), so that no disk decides. Stalls and rounds
are medians of ratios of neighbours: `wall` time, `cpu` seconds of the process with all threads,
`own` CPU seconds of the thread that works. On a machine that does other things too, wall time is
noise: look at `own` for what a training thread or a pass does itself, and at `cpu` for all of it.

Units. A memcpy is one `_foreach_copy_` of the state into kept buffers. A read-add loads one delta
file after the other with safetensors and adds it to a sum, here in new memory (the details have
kept memory too). A state is the model's bytes. The arrival of a delta, its sha256 included, is no
part of a round: that happens while it is fetched.

Limits, by the profile (the parts of a round are among its figures). The thread that walks takes
the mean, reads the last global, takes the outer step and writes two files as large as the model;
threads of their own take the sha256 of these meanwhile, which with two deltas is nearly as much
work as all of the walk. So no round is shorter than its walk, however many cores are free, and the
CPU of a round of 2 cannot come below the sum. The outer step rounds each operation on its own, so
that every master comes to the same bits; that keeps it from being a single pass. As in a run, the
files of an old global are written over: to make room for new ones took as long as the walk over two
deltas.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_DISABLE_XET", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import torch
from bench_cost_hub import hub_costs
from bench_cost_memory import memory_costs
from bench_cost_node import node_costs
from bench_cost_round import round_costs
from bench_cost_subjects import Layers
from bench_cost_training import training_costs

KINDS = ("hub", "memory", "node", "round", "training")
PARTS = ("reading the last global", "outer step", "writing both files", "sha256 of both files")
"""Of a round, beside the mean."""
MILLION = 1_000_000


def measure(kind: str, parameters: int, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """The figures of one kind, for one size of model."""
    match kind:
        case "hub":
            return hub_costs(parameters, folder)
        case "memory":
            return memory_costs(parameters, folder, counts=given.deltas)
        case "node":
            return node_costs(parameters, folder, samples=given.samples)
        case "round":
            state = {name: each.detach() for name, each in Layers(parameters).state_dict().items()}
            return round_costs(state, folder, counts=given.deltas, samples=given.samples)
        case _:
            return {
                who: training_costs(
                    parameters,
                    folder / who,
                    rows=given.rows,
                    steps=given.steps,
                    turns=given.turns,
                    reference=who == "reference",
                )
                for who in ("ours", "reference")
            }


Row = tuple[str, Any, Any, str]
"""Figure, ours, the reference's, what it must be under or at least."""


def table(kind: str, found: dict[str, Any]) -> Iterator[Row]:
    tables = {
        "hub": hub_table,
        "memory": memory_table,
        "node": node_table,
        "round": round_table,
        "training": training_table,
    }
    return tables[kind](found)


def hub_table(found: dict[str, Any]) -> Iterator[Row]:
    limits = {"idle poll": "1", "delta": "4", "publication": "8 in 1 commit"}
    for name, limit in limits.items():
        yield f"requests: {name}", *pair(found, name, requests), limit
    name = "bytes of files fetched by a look without a new delta"
    yield name, *pair(found, name, lambda each: each), "0"


def memory_table(found: dict[str, Any]) -> Iterator[Row]:
    yield "memory of a boundary, states", found["boundary"], found["boundary-reference"], "2.1"
    checkpoint = found["boundary-with-a-checkpoint"]
    yield "memory of a boundary with AdamW's checkpoint, states", checkpoint, "-", "told"
    for name in found:
        if name.startswith("round") and not name.endswith("reference"):
            reference = found[f"{name}-reference"]
            yield f"memory of a {name} states", found[name], reference, "2.5"


def round_table(found: dict[str, Any]) -> Iterator[Row]:
    to = "read-add into a new sum"
    for count, each in found.items():
        yield f"mean, {count}, read-adds", each[f"mean / {to}"], "-", "1.3"
        limit = "2.5" if count == "N=2" else "2"
        yield f"round, {count}, read-adds", each[f"round / {to}"], each[f"reference / {to}"], limit
        for part in PARTS:
            yield f"of a round, {count}: {part}, read-adds", each[f"{part} / {to}"], "-", "told"


def training_table(found: dict[str, Any]) -> Iterator[Row]:
    for name, limit in {"speed on / off": "0.97", "CPU seconds a boundary": "told"}.items():
        yield name, *pair(found, name, lambda each: each), limit


def node_table(found: dict[str, Any]) -> Iterator[Row]:
    limits = {
        "boundary": "1.25",
        "boundary, a lane busy": "told",
        "boundary, landing": "told",
        "boundary with a checkpoint": "told",
        "replace": "1.5",
        "rebase": "2.5",
    }
    for name, limit in limits.items():
        theirs = found.get(f"{name}, reference")
        if name in ("rebase", "boundary with a checkpoint"):
            theirs = None  # it has no such thing
        yield f"{name}, memcpys", of_time(found[name]), of_time(theirs), limit


def of_time(found: dict[str, Any] | None) -> Any:
    return "-" if found is None else {kind: found[kind] for kind in ("wall", "cpu", "own")}


def pair(found: dict[str, Any], name: str, shown: Callable[[Any], Any]) -> tuple[Any, Any]:
    return shown(found["ours"][name]), shown(found["reference"][name])


def requests(found: dict[str, Any]) -> str:
    return f"{found['requests']} in {found['commits']} commits"


def show(kind: str, found: dict[str, Any]) -> None:
    for name, ours, reference, limit in table(kind, found):
        print(f"  {name}: {ours}   reference {reference}   must be {limit}", flush=True)


def numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--params", type=numbers, default=[10, 50, 100], help="millions")
    parser.add_argument("--what", default=",".join(KINDS), help="which kinds of figures")
    parser.add_argument("--deltas", type=numbers, default=[2, 8, 32], help="N")
    parser.add_argument("--samples", type=int, default=7, help="of each ratio")
    parser.add_argument("--rows", type=int, default=256, help="of a training batch")
    parser.add_argument("--steps", type=int, default=80, help="of a stretch, at least 20 s")
    parser.add_argument("--turns", type=int, default=3, help="stretches with and without")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--json", type=Path, help="where everything goes, details included")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {"command": sys.argv, "torch": torch.__version__}
    for millions in given.params:
        of_size = found[f"{millions} M parameters"] = {}
        for kind in given.what.split(","):
            print(f"{millions} M parameters, {kind}:", flush=True)
            folder = Path(tempfile.mkdtemp(prefix="costs-", dir=given.folder))
            try:
                of_size[kind] = measure(kind, millions * MILLION, folder, given)
            finally:
                shutil.rmtree(folder)
            show(kind, of_size[kind])
            if given.json is not None:
                given.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
