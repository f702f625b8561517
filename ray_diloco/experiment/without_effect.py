"""Settings that mean nothing beside the choice that was made: worth a word, as they were set."""

from ray_diloco.experiment.schema import Config

_SHAPED = ("gpt", "mlp", "cnn", "perceptron")
_IMAGES = ("cnn", "perceptron")
_OF_TEXT = ("stdlib", "shakespeare", "text", "synthetic")
_NEEDS: dict[str, dict[str, tuple[str, ...]]] = {
    "model.name": {
        **dict.fromkeys(("size", "layers"), _SHAPED),
        "vocabulary": ("gpt", "mlp", "custom", "hf"),
        "width": ("gpt", "mlp", "cnn"),
        "hidden": ("gpt", "mlp", "perceptron"),
        **dict.fromkeys(("context", "heads", "kv_heads"), ("gpt",)),
        "window": ("mlp",),
        **dict.fromkeys(("channels", "image_size", "classes"), _IMAGES),
        **dict.fromkeys(("source", "pretrained", "config"), ("hf",)),
        "activation_checkpointing": ("gpt", "hf", "custom"),
        "custom": ("custom",),
    },
    "data.name": {
        "files": ("text", "hf"),
        **dict.fromkeys(("synthetic_bytes", "synthetic_seed"), ("synthetic",)),
        "held_out_files": _OF_TEXT,
        **dict.fromkeys(
            (
                *("dataset", "dataset_config", "dataset_revision", "split", "eval_split"),
                *("held_out_documents", "text_column", "tokenizer"),
            ),
            ("hf",),
        ),
        "custom": ("custom",),
    },
    "data.shard": {"block_bytes": ("iid",), "dirichlet_alpha": ("dirichlet",)},
    "inner.name": {"momentum": ("sgd", "muon"), "custom": ("custom",)},
    "inner.schedule": dict.fromkeys(("schedule_steps", "final_fraction"), ("cosine",)),
    "diloco.outer": {
        "outer_arrivals": ("delayed_nesterov", "buffered"),
        "outer_c": ("delayed_nesterov",),
        **dict.fromkeys(("outer_beta2", "outer_eps"), ("adam",)),
    },
    "diloco.staleness": {
        "staleness_exponent": ("poly",),
        **dict.fromkeys(("staleness_slope", "staleness_after"), ("hinge",)),
    },
    "diloco.aggregation": {
        "trim_share": ("trimmed_mean",),
        "byzantine": ("krum",),
        "clip_radius": ("centered_clip", "norm_clip"),
        "clip_iterations": ("centered_clip",),
    },
    "diloco.merge": {
        "grace_seconds": ("grace",),
        "min_deltas": ("quorum",),
        "max_wait": ("quorum",),
    },
}
"""By the setting that chooses: further settings of its group, and the choices that use them."""


def without_effect(config: Config) -> list[str]:
    """A line for each setting that differs from its default and that the choice does not use."""
    lines: list[str] = []
    for chooser, needs in _NEEDS.items():
        group, name = chooser.split(".")
        settings = getattr(config, group)
        chosen, defaults = getattr(settings, name), type(settings)()
        for setting, users in needs.items():
            value = getattr(settings, setting)
            if chosen not in users and value != getattr(defaults, setting):
                lines.append(
                    f"{group}.{setting} has no effect with {chooser}={chosen}, only with "
                    f"{' or '.join(users)}"
                )
    return lines
