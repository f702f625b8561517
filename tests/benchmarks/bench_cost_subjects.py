"""What the costs are measured on: one model, its deltas, and the peer's side of each."""

import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from speedtronic.distributed.hub import GlobalMetadata, HubClient
from speedtronic.distributed.outer import MasterOuterLoop
from torch import nn

from ray_diloco.master.aggregation import FetchedDelta
from ray_diloco.master.outer_optimizer import OuterOptimizer
from ray_diloco.master.outer_state import GlobalFiles
from ray_diloco.master.round_files import Merge, write_first_global
from ray_diloco.protocol.delta_card import DeltaCard
from ray_diloco.protocol.paths import delta_path
from ray_diloco.protocol.ranges import StepRanges
from ray_diloco.tensors.safetensors_writer import write_state
from ray_diloco.tensors.schema import StateSchema

State = dict[str, torch.Tensor]
WIDTH = 1024
DISTINCT = 8
"""Deltas of different bytes; more of them are these again, since 32 deltas of 100 M parameters
would take 13 GB of memory.
"""
OUTER = OuterOptimizer(lr=0.7, momentum=0.9)


class Layers(nn.Module):
    """Square matrices and their biases, about so many parameters."""

    def __init__(self, parameters: int, width: int = WIDTH) -> None:
        super().__init__()
        count = max(1, round(parameters / (width * (width + 1))))
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(count))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            batch = batch + layer(batch).tanh()
        return batch.square().mean()


def size_of(state: Mapping[str, torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in state.values())


def numbers_like(state: State, seed: int) -> State:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(tensor.shape, generator=generator) * 1e-3
        for name, tensor in state.items()
    }


def card_of(index: int) -> DeltaCard:
    """Without the payload's sha256, which is checked on arrival."""
    return DeltaCard(
        node_id=f"n{index:02d}",
        local_step=20,
        base_outer_step=0,
        nonce=f"nonce{index}",
        covers=StepRanges.of(1, 20),
        tokens=1000,
    )


def header_of(card: DeltaCard) -> dict[str, str]:
    return {name: text for name, text in card.header().items() if name != "sha256"}


def write_deltas(state: State, count: int, folder: Path) -> list[FetchedDelta]:
    folder.mkdir(parents=True, exist_ok=True)
    deltas = []
    for index in range(min(count, DISTINCT)):
        card = card_of(index)
        path = delta_path(card.node_id, card.local_step)
        file = folder / f"{card.node_id}.safetensors"
        if not file.exists():
            write_state(file, numbers_like(state, index), header_of(card))
        deltas.append(FetchedDelta(path=path, file=file, card=card))
    return [deltas[index % DISTINCT] for index in range(count)]


def first_global(state: State, folder: Path) -> tuple[StateSchema, GlobalFiles]:
    schema = StateSchema.of_state(state)
    written = write_first_global(
        state,
        schema=schema,
        optimizer=OUTER,
        folder=folder,
        model_metadata={"format": "pt"},
        state_metadata={"ledger": "{}"},
    )
    return schema, GlobalFiles(model=written.model.path, state=written.state.path, outer_step=0)


def describe(merge: Merge) -> Mapping[str, str]:
    """Strings of the size that a master's are."""
    return {"ledger": "x" * 200 * len(merge.merged), "norms": str(list(merge.norms))}


class LocalHub(HubClient):
    """The peer's own client with the network left out: files lie where it looks for them, and what
    it uploads is written by its own code and goes no further.
    """

    def __init__(self, folder: Path, deltas: Mapping[str, Path] | None = None) -> None:
        super().__init__("local/run", token="none", cache_dir=folder / "cache", api=object())
        self._deltas = deltas or {}

    def upload(self, local_path: Any, remote_path: str) -> None:
        pass

    def delta_paths(self) -> list[str]:
        return sorted(self._deltas)

    def download(self, remote_path: str, local_path: Any = None) -> Path:  # noqa: ARG002 - theirs
        return self._deltas[remote_path]

    def global_metadata(self) -> GlobalMetadata | None:
        return None


def peers_round(
    state: State, deltas: list[FetchedDelta], folder: Path
) -> Callable[[], Callable[[], object]]:
    """A round of the peer's master, download and upload left out."""
    files = {delta_path(f"n{index}", 20): delta.file for index, delta in enumerate(deltas)}

    def prepare() -> Callable[[], object]:
        shutil.rmtree(folder, ignore_errors=True)
        loop = MasterOuterLoop(
            LocalHub(folder, files), state, node_state_dir=folder, logger=silent()
        )
        return loop.sync_once

    return prepare


def silent() -> logging.Logger:
    logger = logging.getLogger("costs")
    logger.setLevel(logging.CRITICAL)
    return logger
