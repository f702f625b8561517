"""Which bytes of the training text belong to which node. Every rule but ``shared`` deals each byte
to exactly one node.
"""

import fnmatch
import hashlib
import itertools
from collections.abc import Sequence

import numpy as np

from ray_diloco.errors import ConfigError
from ray_diloco.workload.documents import Document
from ray_diloco.workload.seeds import derived_seed
from ray_diloco.workload.settings import DataSettings

_DIRICHLET_TRIES = 100


def hold_out(
    documents: Sequence[Document], settings: DataSettings
) -> tuple[tuple[Document, ...], tuple[Document, ...]]:
    """(training, held out), both in the given order and without a byte in common.

    By ``held_out_files`` whole documents; else documents in the order of their names' hashes until
    the fraction is reached, the last one cut, so that it works for a single file and needs no seed.
    """
    if settings.held_out_files:
        return _hold_out_files(documents, settings.held_out_files)
    remaining = round(
        sum(len(document.text) for document in documents) * settings.held_out_fraction
    )
    taken: dict[str, int] = {}
    for document in sorted(documents, key=lambda one: hashlib.sha256(one.name.encode()).digest()):
        taken[document.name] = min(remaining, len(document.text))
        remaining -= taken[document.name]
    cuts = [(document, len(document.text) - taken[document.name]) for document in documents]
    training = tuple(_piece(document, 0, cut) for document, cut in cuts if cut)
    held_out = tuple(
        _piece(document, cut, len(document.text))
        for document, cut in cuts
        if cut < len(document.text)
    )
    return training, held_out


def shard_text(
    documents: Sequence[Document], settings: DataSettings, *, node_index: int, nodes: int, seed: int
) -> bytes:
    """The part of the training text that belongs to node ``node_index`` of ``nodes``.

    ConfigError when the rule leaves some node less than one sequence: the same answer on every
    node.
    """
    shards = _deal(documents, settings, nodes=nodes, seed=seed)
    shortest = min(len(shard) for shard in shards)
    if shortest <= settings.sequence_length:
        raise ConfigError(
            "data.shard",
            settings.shard,
            f"one of {nodes} shards would have {shortest} bytes, expected more than "
            f"data.sequence_length ({settings.sequence_length}): fewer nodes (cluster.nodes), more "
            f"text{_smaller_blocks(settings)} or another rule",
        )
    return shards[node_index]


def _smaller_blocks(settings: DataSettings) -> str:
    blocks = f", smaller blocks (data.block_bytes={settings.block_bytes})"
    return blocks if settings.shard == "iid" else ""


def _deal(
    documents: Sequence[Document], settings: DataSettings, *, nodes: int, seed: int
) -> list[bytes]:
    match settings.shard:
        case "shared":
            return [_joined(documents)] * nodes
        case "contiguous":
            return _deal_contiguous(_joined(documents), nodes)
        case "group":
            return _deal_groups(documents, nodes)
        case "dirichlet":
            return _deal_dirichlet(documents, settings, nodes=nodes, seed=seed)
        case _:
            return _deal_blocks(_joined(documents), nodes, settings.block_bytes)


def _deal_blocks(text: bytes, nodes: int, block_bytes: int) -> list[bytes]:
    starts = range(0, len(text), block_bytes)
    return [
        b"".join(text[start : start + block_bytes] for start in starts[node::nodes])
        for node in range(nodes)
    ]


def _deal_contiguous(text: bytes, nodes: int) -> list[bytes]:
    bounds = [len(text) * node // nodes for node in range(nodes + 1)]
    return [text[start:stop] for start, stop in itertools.pairwise(bounds)]


def _deal_groups(documents: Sequence[Document], nodes: int) -> list[bytes]:
    """Whole groups, the largest first, each to the node that has least so far."""
    groups = _grouped(documents)
    if len(groups) < nodes:
        raise ConfigError(
            "data.shard",
            "group",
            f"{len(groups)} groups for {nodes} nodes (cluster.nodes); "
            "expected fewer nodes, dirichlet or contiguous",
        )
    shards: list[list[str]] = [[] for _ in range(nodes)]
    sizes = [0] * nodes
    for name in sorted(groups, key=lambda name: (-len(groups[name]), name)):
        node = sizes.index(min(sizes))
        shards[node].append(name)
        sizes[node] += len(groups[name])
    return [b"".join(groups[name] for name in sorted(names)) for names in shards]


def _deal_dirichlet(
    documents: Sequence[Document], settings: DataSettings, *, nodes: int, seed: int
) -> list[bytes]:
    """Each group is cut into shares drawn from Dirichlet(alpha); drawn again while a node has less
    than a sequence.
    """
    draws = np.random.default_rng(derived_seed(seed, "data", "dirichlet"))
    groups = _grouped(documents)
    shards: list[bytes] = []
    for _ in range(_DIRICHLET_TRIES):
        parts = [
            _cut(groups[name], draws.dirichlet([settings.dirichlet_alpha] * nodes))
            for name in sorted(groups)
        ]
        shards = [b"".join(column) for column in zip(*parts, strict=True)]
        if min(len(shard) for shard in shards) > settings.sequence_length:
            break
    return shards


def _cut(text: bytes, shares: np.ndarray) -> list[bytes]:
    inner = np.round(np.cumsum(shares)[:-1] * len(text)).astype(int).tolist()
    return [text[start:stop] for start, stop in itertools.pairwise([0, *inner, len(text)])]


def _grouped(documents: Sequence[Document]) -> dict[str, bytes]:
    names: dict[str, list[bytes]] = {}
    for document in documents:
        names.setdefault(document.group, []).append(document.text)
    return {name: b"".join(texts) for name, texts in names.items()}


def _hold_out_files(
    documents: Sequence[Document], patterns: Sequence[str]
) -> tuple[tuple[Document, ...], tuple[Document, ...]]:
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(document.name, pattern) for document in documents):
            raise ConfigError("data.held_out_files", pattern, "matches no document of the data")
    held = {
        document.name
        for document in documents
        if any(fnmatch.fnmatchcase(document.name, pattern) for pattern in patterns)
    }
    training = tuple(document for document in documents if document.name not in held)
    return training, tuple(document for document in documents if document.name in held)


def _piece(document: Document, start: int, stop: int) -> Document:
    return Document(name=document.name, group=document.group, text=document.text[start:stop])


def _joined(documents: Sequence[Document]) -> bytes:
    return b"".join(document.text for document in documents)
