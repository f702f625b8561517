"""scikit-learn's 1797 handwritten digits, images of 8 x 8: another kind of data, soon learnt.

A batch is (images, labels): (batch, 1, 8, 8) float32 from 0 to 1, and (batch,) int64. One image
counts as one token.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from ray_diloco.errors import ConfigError
from ray_diloco.workload.extras import needed
from ray_diloco.workload.seeds import derived_seed
from ray_diloco.workload.settings import DataSettings

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageCorpus:
    """Images and labels, split once; ``manifest``: sha256 over all of them."""

    training: Batch
    held_out: Batch
    manifest: str


@lru_cache(maxsize=1)
def read_digits() -> Batch:
    """All of them. ConfigError when scikit-learn is not there."""
    found: Any = needed("sklearn.datasets", "data.name", "digits", extra="digits").load_digits()
    images = torch.from_numpy(found.images.astype(np.float32) / 16)[:, None]
    return images, torch.from_numpy(found.target.astype(np.int64))


def image_corpus(images: torch.Tensor, labels: torch.Tensor, settings: DataSettings) -> ImageCorpus:
    """Every n-th image is held out, so that it needs no draw."""
    every = max(2, round(1 / settings.held_out_fraction))
    held = torch.arange(len(labels)) % every == every - 1
    digest = hashlib.sha256(images.numpy().tobytes() + labels.numpy().tobytes()).hexdigest()
    return ImageCorpus(
        training=(images[~held], labels[~held]),
        held_out=(images[held], labels[held]),
        manifest=digest,
    )


def shard_images(
    labels: torch.Tensor, settings: DataSettings, *, node_index: int, nodes: int, seed: int
) -> torch.Tensor:
    """Which images belong to node ``node_index`` of ``nodes``; groups are the classes.

    ConfigError when the rule leaves some node without any: the same answer on every node.
    """
    by_class = torch.argsort(labels, stable=True)
    match settings.shard:
        case "shared":
            shards = [torch.arange(len(labels))] * nodes
        case "contiguous":
            shards = list(torch.arange(len(labels)).tensor_split(nodes))
        case "group":
            shards = list(by_class.tensor_split(nodes))
        case "dirichlet":
            shards = _dirichlet(labels, settings.dirichlet_alpha, nodes=nodes, seed=seed)
        case _:
            shards = [torch.arange(len(labels))[node::nodes] for node in range(nodes)]
    if min(len(shard) for shard in shards) == 0:
        raise ConfigError(
            "data.shard",
            settings.shard,
            f"one of {nodes} shards would be empty; expected fewer nodes (cluster.nodes) or "
            "another rule",
        )
    return shards[node_index]


class ImageStream:
    """An endless iterable of batches drawn with replacement from a shard; exactly resumable.
    Owns its generator.
    """

    def __init__(self, shard: Batch, *, batch_size: int, generator: torch.Generator) -> None:
        self._images, self._labels = shard
        self._batch_size = batch_size
        self._generator = generator

    @property
    def shard_tokens(self) -> int:
        return len(self._labels)

    def __iter__(self) -> Iterator[Batch]:
        while True:
            chosen = torch.randint(
                len(self._labels), (self._batch_size,), generator=self._generator
            )
            yield self._images[chosen], self._labels[chosen]

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._generator.set_state(state["generator"])


def image_evaluation(corpus: ImageCorpus, settings: DataSettings) -> list[Batch]:
    """Held-out batches, always the same; fewer than ``eval_batches`` where there are no more."""
    images, labels = corpus.held_out
    size = settings.eval_batch_size
    pairs = zip(images.split(size), labels.split(size), strict=True)
    return list(pairs)[: settings.eval_batches]


def _dirichlet(labels: torch.Tensor, alpha: float, *, nodes: int, seed: int) -> list[torch.Tensor]:
    draws = np.random.default_rng(derived_seed(seed, "data", "dirichlet"))
    parts: list[list[torch.Tensor]] = [[] for _ in range(nodes)]
    for label in labels.unique():
        members = (labels == label).nonzero().view(-1)
        bounds = np.round(np.cumsum(draws.dirichlet([alpha] * nodes))[:-1] * len(members))
        cuts = members.tensor_split(torch.from_numpy(bounds.astype(np.int64)))
        for part, cut in zip(parts, cuts, strict=True):
            part.append(cut)
    return [torch.cat(part) for part in parts]
