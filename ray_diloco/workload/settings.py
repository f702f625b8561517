"""The settings of what is trained: groups ``model``, ``data`` and ``inner``.

Flat fields of plain types, so that each class serves as a structured configuration. ``custom``
holds the user's own part: ``{"_target_": "package.module.Name", **arguments}``, taken from the
modules under ``allow_targets`` only.
"""

from dataclasses import dataclass, field
from typing import Any

from ray_diloco.errors import ConfigError
from ray_diloco.protocol.choices import require_choice

BYTES = 256
"""Vocabulary of byte-level text."""

MODEL_NAMES = ("gpt", "mlp", "cnn", "perceptron", "hf", "custom")
MODEL_SIZES = ("tiny", "mini", "small")
DATA_NAMES = ("stdlib", "shakespeare", "text", "synthetic", "digits", "hf", "custom")
SHARDINGS = ("iid", "contiguous", "group", "dirichlet", "shared")
OPTIMIZERS = ("adamw", "muon", "sgd", "custom")
SCHEDULES = ("constant", "cosine")
PRECISIONS = ("fp32", "bf16", "fp16")
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Group ``model``."""

    name: str = "gpt"
    """gpt, mlp, cnn and perceptron (for images), hf (a causal model of transformers), or custom
    (the user's own nn.Module).
    """
    size: str = "tiny"
    """Shape of the built-in models, unless single fields below say otherwise: tiny, mini or small.
    """
    vocabulary: int = BYTES
    """Token ids run from 0 up to, not including, this."""
    context: int = 1024
    """The longest sequence that gpt takes, in tokens; how many preceding tokens mlp sees is
    ``window``.
    """
    layers: int | None = None
    """Blocks; null: by size."""
    width: int | None = None
    """Features between blocks; null: by size."""
    heads: int | None = None
    """Query heads of gpt; null: by size."""
    kv_heads: int | None = None
    """Key and value heads of gpt, a divisor of the query heads; null: by size."""
    hidden: int | None = None
    """Features inside a feed-forward block; null: by size."""
    window: int = 8
    """How many tokens, the present one included, mlp predicts the next token from."""
    channels: int = 1
    """Channels of the images of cnn and perceptron."""
    image_size: int = 8
    """Height and width of the images of cnn and perceptron."""
    classes: int = 10
    """Classes that cnn and perceptron tell apart."""
    source: str | None = None
    """With name=hf: the model repository or folder whose configuration is taken."""
    pretrained: bool = False
    """With name=hf: take the weights of ``source`` too, instead of drawing new ones."""
    config: dict[str, Any] = field(default_factory=dict)
    """With name=hf: fields of its configuration; without ``source``, ``model_type`` among them."""
    weights: str | None = None
    """A safetensors file with the weights that a new run starts from, such as the
    ``model.safetensors`` of an earlier one; null: drawn by ``run.seed``.
    """
    dtype: str | None = None
    """What the weights are stored in: float32 or bfloat16; null: what the constructor of a custom
    model makes them, and float32 for all others.
    """
    activation_checkpointing: bool = False
    """Compute each block's activations again in the backward pass, to save memory."""
    custom: dict[str, Any] = field(default_factory=dict)
    """With name=custom: ``_target_`` and its arguments."""
    allow_targets: list[str] = field(default_factory=list)
    """Module prefixes that ``custom._target_`` may name, beside torch.nn."""

    def check(self) -> None:
        """ConfigError for the first setting that cannot be used."""
        require_choice("model.name", self.name, MODEL_NAMES)
        require_choice("model.size", self.size, MODEL_SIZES)
        if self.dtype is not None:
            require_choice("model.dtype", self.dtype, DTYPES)
        for name in ("vocabulary", "context", "window", "channels", "image_size", "classes"):
            _at_least("model", self, name, 1)
        for name in ("layers", "width", "heads", "kv_heads", "hidden"):
            if getattr(self, name) is not None:
                _at_least("model", self, name, 1)
        _check_custom("model", self.name, self.custom)
        if self.name == "hf":
            self._check_hf()

    def _check_hf(self) -> None:
        if self.source is None and self.pretrained:
            raise ConfigError("model.source", None, "expected a repository or folder to load from")
        if self.source is None and "model_type" not in self.config:
            raise ConfigError(
                "model.source", None, "expected a repository or folder, or model.config.model_type"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """Group ``data``. One token is one byte of text, one image, or what ``tokenizer`` makes."""

    name: str = "stdlib"
    """stdlib (source text of Python's standard library), shakespeare (his plays), text (own files),
    synthetic, digits (images), hf (a dataset that datasets can stream), or custom.
    """
    files: list[str] = field(default_factory=list)
    """With name=text: paths or globs; ``**`` descends into folders. With name=hf: the data files of
    the dataset, as datasets takes them.
    """
    sequence_length: int = 128
    """Tokens per sequence that are predicted; a batch has one more."""
    batch_size: int = 8
    """Sequences per micro-batch, unless a node has its own."""
    shard: str = "iid"
    """How the training data are dealt to nodes: iid (interleaved), contiguous, group (whole
    packages, genres or classes), dirichlet (each group in random shares), shared (every node draws
    from all).
    """
    block_bytes: int = 4096
    """Length of the interleaved blocks of shard=iid."""
    dirichlet_alpha: float = 0.3
    """Concentration of shard=dirichlet: the smaller, the more unlike the shards."""
    held_out_fraction: float = 0.05
    """Share of the data that no node trains on, whole documents as far as they fit."""
    held_out_files: list[str] = field(default_factory=list)
    """Patterns of document names to hold out instead of a fraction, such as ``json/*``."""
    eval_batches: int = 8
    """Held-out batches per evaluation, always the same."""
    eval_batch_size: int = 16
    """Sequences per held-out batch."""
    synthetic_bytes: int = 1_000_000
    """With name=synthetic: length of the text."""
    synthetic_seed: int = 0
    """With name=synthetic: seed of the source and of the text."""
    dataset: str | None = None
    """With name=hf: the dataset's repository, or a format such as json with ``files``."""
    dataset_config: str | None = None
    """With name=hf: which configuration of the dataset."""
    dataset_revision: str | None = None
    """With name=hf: branch, tag or commit of the dataset."""
    split: str = "train"
    """With name=hf: the split that nodes train on."""
    eval_split: str | None = None
    """With name=hf: the split to evaluate with; null: the first documents of ``split``."""
    held_out_documents: int = 256
    """With name=hf: how many documents no node trains on, without ``eval_split``."""
    text_column: str = "text"
    """With name=hf: the column of the text."""
    tokenizer: str | None = None
    """With name=hf: a repository or folder with a tokenizer, or its .json file; null: bytes."""
    custom: dict[str, Any] = field(default_factory=dict)
    """With name=custom: ``_target_`` and its arguments; it gives an iterable of batches."""
    allow_targets: list[str] = field(default_factory=list)
    """Module prefixes that ``custom._target_`` may name."""

    def check(self) -> None:
        """ConfigError for the first setting that cannot be used; files are looked for when the data
        is built.
        """
        require_choice("data.name", self.name, DATA_NAMES)
        require_choice("data.shard", self.shard, SHARDINGS)
        for name in (
            "sequence_length",
            "batch_size",
            "block_bytes",
            "eval_batches",
            "eval_batch_size",
        ):
            _at_least("data", self, name, 1)
        _at_least("data", self, "synthetic_bytes", 1000)
        _at_least("data", self, "synthetic_seed", 0)
        _positive("data", self, "dirichlet_alpha")
        if not 0 < self.held_out_fraction < 1:
            raise ConfigError(
                "data.held_out_fraction",
                self.held_out_fraction,
                "expected a number between 0 and 1",
            )
        if self.name == "text" and not self.files:
            raise ConfigError("data.files", self.files, "expected at least one path or glob")
        _check_custom("data", self.name, self.custom)
        if self.name == "hf":
            self._check_hf()

    def _check_hf(self) -> None:
        if not self.dataset:
            raise ConfigError("data.dataset", self.dataset, "expected a dataset, or json and files")
        if self.shard not in ("iid", "shared"):
            raise ConfigError("data.shard", self.shard, "expected iid or shared with data=hf")
        _at_least("data", self, "held_out_documents", 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerSettings:
    """Group ``inner``: how a node trains between two boundaries. Everything here is local to the
    node and never sent.
    """

    name: str = "adamw"
    """adamw, muon (with AdamW for all but hidden matrices), sgd, or custom (the user's own torch
    optimizer).
    """
    learning_rate: float = 4e-3
    """Peak learning rate."""
    weight_decay: float = 0.1
    """Decay of matrices and larger; vectors and scalars are never decayed."""
    beta1: float = 0.9
    """AdamW's decay of the first moment."""
    beta2: float = 0.99
    """AdamW's decay of the second moment."""
    epsilon: float = 1e-8
    """AdamW's epsilon."""
    momentum: float = 0.0
    """Momentum of sgd and muon."""
    schedule: str = "cosine"
    """constant or cosine, after the warm-up."""
    warmup_steps: int = 20
    """Local steps over which the learning rate rises linearly."""
    schedule_steps: int | None = None
    """Local steps until cosine reaches its end; needed by cosine."""
    final_fraction: float = 0.1
    """Share of the peak learning rate that cosine ends with."""
    accumulation: int = 1
    """Micro-batches per local step."""
    clip_norm: float | None = 1.0
    """Largest L2 norm of the gradient; null: no clipping."""
    precision: str = "fp32"
    """fp32, or autocast to bf16 or fp16 (fp16 with a loss scaler)."""
    compile: bool = False
    """Compile the forward pass with torch.compile."""
    max_skipped_steps: int = 50
    """So many overflows in a row end the training with an error."""
    custom: dict[str, Any] = field(default_factory=dict)
    """With name=custom: ``_target_`` and its arguments; called with the parameters first."""
    allow_targets: list[str] = field(default_factory=list)
    """Module prefixes that ``custom._target_`` may name, beside torch.optim."""

    def check(self) -> None:
        """ConfigError for the first setting that cannot be used."""
        require_choice("inner.name", self.name, OPTIMIZERS)
        require_choice("inner.schedule", self.schedule, SCHEDULES)
        require_choice("inner.precision", self.precision, PRECISIONS)
        _check_custom("inner", self.name, self.custom)
        self._check_schedule()
        for name in ("learning_rate", "epsilon"):
            _positive("inner", self, name)
        for name in ("beta1", "beta2", "momentum"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(
                    f"inner.{name}", getattr(self, name), "expected 0 up to, not including, 1"
                )
        for name in ("accumulation", "max_skipped_steps"):
            _at_least("inner", self, name, 1)
        if not 0 <= self.weight_decay < float("inf"):
            raise ConfigError("inner.weight_decay", self.weight_decay, "expected 0 or more")
        if self.clip_norm is not None:
            _positive("inner", self, "clip_norm")

    def _check_schedule(self) -> None:
        _at_least("inner", self, "warmup_steps", 0)
        if self.schedule == "cosine" and (
            self.schedule_steps is None or self.schedule_steps <= self.warmup_steps
        ):
            raise ConfigError(
                "inner.schedule_steps",
                self.schedule_steps,
                f"expected more than inner.warmup_steps ({self.warmup_steps}), "
                "or inner.schedule=constant",
            )
        if not 0 <= self.final_fraction <= 1:
            raise ConfigError("inner.final_fraction", self.final_fraction, "expected 0 to 1")


def _at_least(group: str, settings: object, name: str, least: int) -> None:
    if not getattr(settings, name) >= least:
        raise ConfigError(f"{group}.{name}", getattr(settings, name), f"expected at least {least}")


def _positive(group: str, settings: object, name: str) -> None:
    if not 0 < getattr(settings, name) < float("inf"):
        raise ConfigError(f"{group}.{name}", getattr(settings, name), "expected a number above 0")


def _check_custom(group: str, name: str, custom: dict[str, Any]) -> None:
    target = custom.get("_target_")
    if name == "custom" and not (isinstance(target, str) and target):
        raise ConfigError(
            f"{group}.custom._target_", target, "expected the dotted name of a class or function"
        )
