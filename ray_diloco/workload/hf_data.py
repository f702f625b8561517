"""Text from ``datasets.load_dataset(..., streaming=True)``, cut into sequences of tokens or bytes.

Nothing is downloaded whole: each node streams its own documents. The documents' order is the
dataset's.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ray_diloco.errors import ConfigError
from ray_diloco.workload.extras import needed
from ray_diloco.workload.settings import BYTES, DataSettings

Encode = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HfCorpus:
    """A dataset that is opened when a stream is asked for. ``vocabulary``: token ids lie below."""

    encode: Encode
    vocabulary: int
    manifest: str
    """sha256 over what names the data: its bytes are not known here."""


def hf_corpus(settings: DataSettings) -> HfCorpus:
    """ConfigError when a package is not there or the tokenizer cannot be loaded."""
    needed("datasets", "data.name", "hf", extra="hf")
    encode, vocabulary = _encoder(settings.tokenizer)
    named = [
        *(settings.dataset, settings.dataset_config, settings.dataset_revision, settings.files),
        *(settings.split, settings.eval_split, settings.text_column, settings.tokenizer),
    ]
    manifest = hashlib.sha256(json.dumps(named).encode()).hexdigest()
    return HfCorpus(encode=encode, vocabulary=vocabulary, manifest=manifest)


def hf_evaluation(corpus: HfCorpus, settings: DataSettings) -> list[torch.Tensor]:
    """The first batches of the evaluation split, or of the documents that are held out."""
    if settings.eval_split is not None:
        documents = _texts(open_split(settings, settings.eval_split), settings)
    else:
        held = itertools.islice(open_split(settings, settings.split), settings.held_out_documents)
        documents = _texts(held, settings)
    packer = Packer(settings.eval_batch_size, settings.sequence_length)
    packed = (batch for text in documents for batch in packer.add(corpus.encode(text)))
    batches = list(itertools.islice(packed, settings.eval_batches))
    if not batches:
        raise ConfigError(
            "data.held_out_documents" if settings.eval_split is None else "data.eval_split",
            settings.held_out_documents if settings.eval_split is None else settings.eval_split,
            f"expected enough text for a batch of {settings.eval_batch_size} sequences",
        )
    return batches


class HfStream:
    """The batches of one node, once through its documents; exactly resumable.

    The node has every ``nodes``-th document after the held-out ones.
    """

    def __init__(
        self,
        corpus: HfCorpus,
        settings: DataSettings,
        *,
        node_index: int,
        nodes: int,
        batch_size: int,
    ) -> None:
        if settings.shard == "shared":
            node_index, nodes = 0, 1
        self._corpus = corpus
        self._settings = settings
        self._node_index = node_index
        self._nodes = nodes
        self._documents = 0
        self._packer = Packer(batch_size, settings.sequence_length)

    def __iter__(self) -> Iterator[torch.Tensor]:
        """From where the last iteration or a loaded state was; from the beginning after the end."""
        yield from self._packer.add([])
        for text in _texts(self._dealt(self._documents), self._settings):
            self._documents += 1
            yield from self._packer.add(self._corpus.encode(text))
        self._documents = 0
        self._packer.rest = []

    def state_dict(self) -> dict[str, Any]:
        """Documents read, and the tokens that are in no batch yet."""
        return {"documents": self._documents, "rest": self._packer.rest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._documents, self._packer.rest = state["documents"], state["rest"]

    def _dealt(self, done: int) -> Iterable[Any]:
        settings = self._settings
        held = settings.held_out_documents if settings.eval_split is None else 0
        start = held + self._node_index + done * self._nodes
        found = open_split(settings, settings.split).skip(start)
        return itertools.islice(found, 0, None, self._nodes)


class Packer:
    """Tokens in, batches of (batch, time + 1) int64 out, each token predicted once."""

    def __init__(self, batch_size: int, sequence_length: int) -> None:
        self._batch_size = batch_size
        self._length = sequence_length
        self._tokens: list[int] = []
        self._taken = 0

    @property
    def rest(self) -> list[int]:
        """What is in no batch yet, but for one token of context."""
        return self._tokens[self._taken :]

    @rest.setter
    def rest(self, tokens: list[int]) -> None:
        self._tokens, self._taken = list(tokens), 0

    def add(self, tokens: list[int]) -> Iterator[torch.Tensor]:
        """All batches that are complete with these."""
        self.rest = self.rest + tokens
        length, size = self._length, self._batch_size * self._length
        while len(self._tokens) - self._taken > size:
            start = self._taken
            self._taken = start + size
            found = torch.tensor(self._tokens[start : start + size + 1])
            yield found.unfold(0, length + 1, length)


def open_split(settings: DataSettings, split: str) -> Any:
    """A ``datasets.IterableDataset``. ConfigError when there is none of that name."""
    datasets = needed("datasets", "data.name", "hf", extra="hf")
    try:
        return datasets.load_dataset(
            settings.dataset,
            settings.dataset_config,
            split=split,
            revision=settings.dataset_revision,
            data_files=settings.files or None,
            streaming=True,
        )
    except (ValueError, OSError) as error:
        reason = str(error).strip().splitlines()[0][:200]
        raise ConfigError("data.dataset", settings.dataset, reason) from error


def _texts(rows: Iterable[Any], settings: DataSettings) -> Iterator[str]:
    for row in rows:
        if settings.text_column not in row:
            columns = ", ".join(sorted(row))
            raise ConfigError(
                "data.text_column", settings.text_column, f"expected one of {columns}"
            )
        yield row[settings.text_column]


def _encoder(name: str | None) -> tuple[Encode, int]:
    """Bytes with a newline behind each document, or a tokenizer's ids with its end-of-text."""
    if name is None:
        return (lambda text: [*text.encode(), ord("\n")]), BYTES
    if name.endswith(".json"):
        return _from_file(Path(name))
    transformers = needed("transformers", "data.tokenizer", name, extra="hf")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (ValueError, OSError) as error:
        reason = str(error).strip().splitlines()[0][:200]
        raise ConfigError("data.tokenizer", name, reason) from error
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return (lambda text: tokenizer(text, verbose=False)["input_ids"] + end), len(tokenizer)


def _from_file(path: Path) -> tuple[Encode, int]:
    tokenizers = needed("tokenizers", "data.tokenizer", str(path), extra="hf")
    if not path.is_file():
        raise ConfigError("data.tokenizer", str(path), "no such file")
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    return (lambda text: tokenizer.encode(text).ids), tokenizer.get_vocab_size()
