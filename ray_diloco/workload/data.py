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
from ray_diloco.workload.digits import (
    ImageCorpus,
    ImageStream,
    image_corpus,
    image_evaluation,
    read_digits,
    shard_images,
)
from ray_diloco.workload.documents import (
    Document,
    draw_synthetic,
    manifest_hash,
    read_files,
    read_stdlib,
)
from ray_diloco.workload.hf_data import HfCorpus, HfStream, hf_corpus, hf_evaluation
from ray_diloco.workload.seeds import generator_for
from ray_diloco.workload.settings import BYTES, DataSettings
from ray_diloco.workload.shakespeare import read_shakespeare
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


Corpus = TextCorpus | ImageCorpus | HfCorpus | CustomCorpus


def vocabulary_of(corpus: Corpus) -> int | None:
    """Token ids lie below this; None when there are none, or the user's data does not tell."""
    match corpus:
        case TextCorpus():
            return BYTES
        case HfCorpus():
            return corpus.vocabulary
        case _:
            return None


def build_data(settings: DataSettings) -> Corpus:
    """Read or draw the data. The standard library and synthetic text are kept for the next call in
    this process.
    """
    match settings.name:
        case "stdlib":
            return _split(read_stdlib(), settings)
        case "shakespeare":
            return _split(read_shakespeare(), settings)
        case "digits":
            return image_corpus(*read_digits(), settings)
        case "hf":
            return hf_corpus(settings)
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
    place = {"node_index": node_index, "nodes": nodes}
    match corpus:
        case TextCorpus():
            return TextStream(
                shard_text(corpus.training, settings, seed=seed, **place),
                batch_size=batch_size,
                sequence_length=settings.sequence_length,
                generator=generator_for(seed, "data", node_index),
            )
        case ImageCorpus():
            images, labels = corpus.training
            shard = shard_images(labels, settings, seed=seed, **place)
            return ImageStream(
                (images[shard], labels[shard]),
                batch_size=batch_size,
                generator=generator_for(seed, "data", node_index),
            )
        case HfCorpus():
            return HfStream(corpus, settings, batch_size=batch_size, **place)
        case CustomCorpus():
            return custom_training(settings, seed=seed, batch_size=batch_size, **place)


def shard_tokens(stream: Iterable[Any]) -> int | None:
    """Size of the shard behind a stream, in tokens; None when the user's data does not tell
    (``shard_tokens``).
    """
    return getattr(stream, "shard_tokens", None)


def evaluation_batches(corpus: Corpus, settings: DataSettings) -> list[Any]:
    """The held-out batches, the same at every call, on every node and for every seed."""
    match corpus:
        case TextCorpus():
            return even_windows(
                b"".join(document.text for document in corpus.held_out),
                batches=settings.eval_batches,
                batch_size=settings.eval_batch_size,
                sequence_length=settings.sequence_length,
            )
        case ImageCorpus():
            return image_evaluation(corpus, settings)
        case HfCorpus():
            return hf_evaluation(corpus, settings)
        case CustomCorpus():
            return custom_evaluation(settings)


def _split(documents: tuple[Document, ...], settings: DataSettings) -> TextCorpus:
    _require_text(documents, settings)
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


def _require_text(documents: tuple[Document, ...], settings: DataSettings) -> None:
    """ConfigError when all text together is too little to train and to evaluate on."""
    total, least = sum(len(each.text) for each in documents), 2 * (settings.sequence_length + 1)
    if total >= least:
        return
    if total == 0 and settings.name == "text":
        raise ConfigError("data.files", settings.files, "hold no byte; expected text")
    source = "data.files" if settings.name == "text" else f"data={settings.name}"
    raise ConfigError(
        "data.sequence_length",
        settings.sequence_length,
        f"{source} has {total} bytes in all; expected at least one sequence to train on and one "
        f"to evaluate with, {least} bytes",
    )
