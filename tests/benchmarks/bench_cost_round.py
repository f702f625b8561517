"""A master's round: the mean of N deltas, and all of it but the network."""

import hashlib
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from bench_cost_samples import alternate, milliseconds, ratio
from bench_cost_subjects import (
    OUTER,
    State,
    describe,
    first_global,
    peers_round,
    write_deltas,
)
from safetensors.torch import load_file

from ray_diloco.master.aggregation import FetchedDelta, OpenDelta, PieceBuffers
from ray_diloco.master.outer_optimizer import outer_step
from ray_diloco.master.outer_state import GlobalFiles, OpenGlobal
from ray_diloco.master.round_files import aggregate_and_step
from ray_diloco.master.validation import Acceptance, NormLimits, check_file, check_values
from ray_diloco.tensors.delta_file import DeltaReader
from ray_diloco.tensors.dtypes import PIECE, STRETCH, pieces
from ray_diloco.tensors.schema import StateSchema

LIMITS = NormLimits(absolute=1e9)


def read_add(deltas: list[FetchedDelta], total: State) -> None:
    """What everything is held against: one file after the other, whole, added to a sum."""
    for delta in deltas:
        for name, tensor in load_file(delta.file).items():
            total[name].add_(tensor)


@torch.no_grad()
def mean_of(deltas: list[FetchedDelta], schema: StateSchema) -> None:
    """The mean with all checks but sha256: form, layout, finiteness, norm."""
    acceptance = Acceptance(schema=schema, outer_step=0)
    for delta in deltas:
        check_file(delta.file, path=delta.path, acceptance=acceptance)
    with ExitStack() as stack:
        opened = [
            OpenDelta(
                delta,
                stack.enter_context(
                    DeltaReader(delta.file, schema=schema, codec="fp32", path=delta.path)
                ),
            )
            for delta in deltas
        ]
        buffers = PieceBuffers()
        for entry in schema:
            for start, stop in pieces(entry.numbers, STRETCH):
                buffers.mean(opened, entry, start, stop)
        for each in opened:
            check_values(each.tally, path=each.delta.path, limits=LIMITS)


def whole_round(
    deltas: list[FetchedDelta], schema: StateSchema, previous: GlobalFiles, folder: Path
) -> Callable[[], object]:
    """Checks, mean, outer step, both files of the next global and their sha256. As in a run, the
    files of the global before the last are written over.
    """
    spare = folder.with_name(f"{folder.name}-spare")
    shutil.rmtree(spare, ignore_errors=True)
    if folder.exists():
        folder.rename(spare)
    acceptance = Acceptance(schema=schema, outer_step=0)

    def work() -> object:
        for delta in deltas:
            check_file(delta.file, path=delta.path, acceptance=acceptance)
        return aggregate_and_step(
            deltas,
            previous=previous,
            schema=schema,
            optimizer=OUTER,
            limits=LIMITS,
            folder=folder,
            model_metadata={"format": "pt"},
            describe_state=describe,
            spare=spare,
        )

    return work


def hash_both(files: GlobalFiles) -> None:
    for file in (files.model, files.state):
        assert file is not None
        with file.open("rb") as opened:
            hashlib.file_digest(opened, "sha256")


def write_both(files: GlobalFiles, over: Path) -> None:
    """As much as both files hold, into a file that is there but for the first time."""
    block = bytes(4 * PIECE)
    assert files.state is not None
    blocks = (files.model.stat().st_size + files.state.stat().st_size) // len(block)
    with over.open("r+b" if over.exists() else "wb", buffering=0) as opened:
        for _ in range(blocks):
            opened.write(block)


def read_both(files: GlobalFiles, schema: StateSchema) -> None:
    """The global that a round goes on from: parameters and momentum."""
    parameter, momentum = torch.empty(STRETCH), torch.empty(STRETCH)
    with OpenGlobal(files) as old:
        for entry in schema:
            for start, stop in pieces(entry.numbers, STRETCH):
                old.read_parameter(entry, start, parameter[: stop - start])
                old.read_buffer("momentum", entry, start, momentum[: stop - start])


def step_all(schema: StateSchema) -> None:
    """The outer step's arithmetic, in kept memory."""
    parameter, mean, momentum = (torch.zeros(STRETCH) for _ in range(3))
    for entry in schema:
        for start, stop in pieces(entry.numbers, STRETCH):
            count = stop - start
            outer_step(OUTER, parameter[:count], mean[:count], {"momentum": momentum[:count]})


def round_costs(state: State, folder: Path, *, counts: list[int], samples: int) -> dict[str, Any]:
    """Per number of deltas: ratios to the file-by-file read-add of the same files, whose sum is
    memory of its own (``new``) or kept from before (``kept``).
    """
    schema, previous = first_global(state, folder / "global")
    found: dict[str, Any] = {}
    for count in counts:
        deltas = write_deltas(state, count, folder / "deltas")
        kept = {name: torch.zeros_like(tensor) for name, tensor in state.items()}

        def into_new(deltas: list[FetchedDelta] = deltas) -> object:
            total = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
            read_add(deltas, total)
            return total

        works = {
            "new": lambda: into_new,
            "kept": lambda deltas=deltas, kept=kept: lambda: read_add(deltas, kept),
            "mean": lambda deltas=deltas: lambda: mean_of(deltas, schema),
            "round": lambda deltas=deltas: whole_round(deltas, schema, previous, folder / "next"),
            "reference": peers_round(state, deltas, folder / "peer"),
            "sha256 of both files": lambda: lambda: hash_both(previous),
            "reading the last global": lambda: lambda: read_both(previous, schema),
            "outer step": lambda: lambda: step_all(schema),
            "writing both files": lambda: lambda: write_both(previous, folder / "written"),
        }
        times = alternate(works, samples)
        found[f"N={count}"] = {
            f"{name} / read-add into a {to} sum": ratio(times, name, to)
            for name in works
            if name not in ("new", "kept")
            for to in ("new", "kept")
        } | {"milliseconds": {name: milliseconds(each) for name, each in times.items()}}
    return found
