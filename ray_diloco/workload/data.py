"""From the settings to batches: one stream per node, and the held-out batches of the master.

Text gives (batch, time + 1) int64 tensors: inputs are all but the last token, targets all but the
first. Other kinds of data may give any batch that ``loss`` understands.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ray_diloco.errors import ConfigError
from ray_diloco.workload.custom_data import custom_evaluation, custom_training
from ray_diloco.workload.documents import (
    Document,
    draw_synthetic,
    manifest_hash,
    read_files,
    read_stdlib,
)
from ray_diloco.workload.seeds import generator_for
from ray_diloco.workload.settings import DataSettings
from ray_diloco.workload.sharding import hold_out, shard_text
from ray_diloco.workload.stream import TextStream, even_windows


@dataclass(frozen=True, slots=True, kw_only=True)
class TextCorpus:
    """Byte text, split once: no document part is both in ``training`` and ``held_out``."""

    training: tuple[Document, ...]
    held_out: tuple[Document, ...]
    manifest: str
    """sha256 over names and contents of all documents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomCorpus:
    """The user's own batches; they are made when a stream is asked for."""

    manifest: str
    """sha256 over the target and its arguments: what they read is not known here."""


Corpus = TextCorpus | CustomCorpus


def build_data(settings: DataSettings) -> Corpus:
    """Read or draw the data. The standard library and synthetic text are kept for the next call in
    this process.
    """
    match settings.name:
        case "stdlib":
            return _split(read_stdlib(), settings)
        case "text":
            return _split(read_files(settings.files), settings)
        case "synthetic":
            return _split(
                draw_synthetic(settings.synthetic_bytes, settings.synthetic_seed), settings
            )
        case _:
            custom = json.dumps(settings.custom, sort_keys=True, default=str)
            return CustomCorpus(manifest=hashlib.sha256(custom.encode()).hexdigest())


def training_stream(
    corpus: Corpus,
    settings: DataSettings,
    *,
    node_index: int,
    nodes: int,
    seed: int,
    batch_size: int | None = None,
) -> Iterable[Any]:
    """The batches of node ``node_index`` of ``nodes``, drawn from a generator of its own.
    ``batch_size`` None: the setting's.
    """
    batch_size = settings.batch_size if batch_size is None else batch_size
    if isinstance(corpus, CustomCorpus):
        return custom_training(
            settings, node_index=node_index, nodes=nodes, seed=seed, batch_size=batch_size
        )
    return TextStream(
        shard_text(corpus.training, settings, node_index=node_index, nodes=nodes, seed=seed),
        batch_size=batch_size,
        sequence_length=settings.sequence_length,
        generator=generator_for(seed, "data", node_index),
    )


def shard_tokens(stream: Iterable[Any]) -> int | None:
    """Size of the shard behind a stream, in tokens; None when the user's data does not tell
    (``shard_tokens``).
    """
    return getattr(stream, "shard_tokens", None)


def evaluation_batches(corpus: Corpus, settings: DataSettings) -> list[Any]:
    """The held-out batches, the same at every call, on every node and for every seed."""
    if isinstance(corpus, CustomCorpus):
        return custom_evaluation(settings)
    text = b"".join(document.text for document in corpus.held_out)
    return even_windows(
        text,
        batches=settings.eval_batches,
        batch_size=settings.eval_batch_size,
        sequence_length=settings.sequence_length,
    )


def _split(documents: tuple[Document, ...], settings: DataSettings) -> TextCorpus:
    training, held_out = hold_out(documents, settings)
    size = sum(len(document.text) for document in held_out)
    if size <= settings.sequence_length:
        setting = "held_out_files" if settings.held_out_files else "held_out_fraction"
        raise ConfigError(
            f"data.{setting}",
            getattr(settings, setting),
            f"holds out {size} bytes; expected more than data.sequence_length "
            f"({settings.sequence_length})",
        )
    return TextCorpus(training=training, held_out=held_out, manifest=manifest_hash(documents))
