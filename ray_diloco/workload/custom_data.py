"""The user's own batches by ``_target_``: any iterable, dealt to nodes so that no two see the same
batch.

The target is called with its own arguments and those of ``split`` ("train" or "eval"),
``node_index``, ``nodes``, ``seed``, ``batch_size`` and ``sequence_length`` that it takes by name.
One that takes no ``node_index`` gives the same batches everywhere, so each node keeps every
``nodes``-th of them; one that takes no ``split`` has its first ``eval_batches`` held out.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from ray_diloco.errors import ConfigError
from ray_diloco.workload.settings import DataSettings
from ray_diloco.workload.targets import accepted_names, call_target, find_target, first_line


class DealtBatches:
    """Every ``step``-th batch of ``batches`` from the ``start``-th on; can be iterated again if
    ``batches`` can.
    """

    def __init__(self, batches: Iterable[Any], *, start: int, step: int) -> None:
        self._batches = batches
        self._start = start
        self._step = step

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self._batches), self._start, None, self._step)

    def set_epoch(self, epoch: int) -> None:
        """Handed on to batches that shuffle by epoch."""
        if hasattr(self._batches, "set_epoch"):
            self._batches.set_epoch(epoch)  # pyright: ignore[reportAttributeAccessIssue]


def custom_training(
    settings: DataSettings, *, node_index: int, nodes: int, seed: int, batch_size: int
) -> Iterable[Any]:
    """The batches of one node."""
    batches = _call(
        settings,
        split="train",
        node_index=node_index,
        nodes=nodes,
        seed=seed,
        batch_size=batch_size,
    )
    known = _taken_by_target(settings)
    start = 0 if "split" in known else settings.eval_batches
    if "node_index" in known or settings.shard == "shared":
        return batches if start == 0 else DealtBatches(batches, start=start, step=1)
    return DealtBatches(batches, start=start + node_index, step=nodes)


def custom_evaluation(settings: DataSettings) -> list[Any]:
    """The first ``eval_batches`` of the evaluation split; ConfigError when there is none."""
    offered = {"node_index": 0, "nodes": 1, "seed": 0, "batch_size": settings.eval_batch_size}
    batches = itertools.islice(_call(settings, split="eval", **offered), settings.eval_batches)
    held_out = list(_drawn(batches, settings))
    if not held_out:
        raise ConfigError(
            "data.custom", settings.custom, "expected at least one batch to evaluate with"
        )
    return held_out


def first_batch(settings: DataSettings, *, nodes: int, seed: int) -> Any:
    """The first batch of the last node, which has the fewest where batches are dealt in turn.
    ConfigError when there is none: the same answer on every node.
    """
    last = {"node_index": nodes - 1, "nodes": nodes}
    stream = custom_training(settings, seed=seed, batch_size=settings.batch_size, **last)
    for batch in _drawn(stream, settings):
        return batch
    held = 0 if "split" in _taken_by_target(settings) else settings.eval_batches
    raise ConfigError(
        "data.custom",
        settings.custom,
        f"gives no batch to node {nodes} of {nodes}; expected at least {held + nodes}, of which "
        f"the first {held} are held out (data.eval_batches)",
    )


def _drawn(batches: Iterable[Any], settings: DataSettings) -> Iterator[Any]:
    """The same batches; ConfigError for what the user's own code raises between them."""
    try:
        yield from batches
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            "data.custom._target_", settings.custom["_target_"], f"raises {first_line(error)}"
        ) from error


def _call(settings: DataSettings, **offered: Any) -> Iterable[Any]:
    try:
        batches = call_target(
            "data.custom",
            settings.custom,
            settings.allow_targets,
            **offered,
            sequence_length=settings.sequence_length,
        )
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            "data.custom._target_", settings.custom["_target_"], f"raises {first_line(error)}"
        ) from error
    if not isinstance(batches, Iterable):
        raise ConfigError(
            "data.custom._target_",
            settings.custom["_target_"],
            "expected to give an iterable of batches",
        )
    return batches


def _taken_by_target(settings: DataSettings) -> tuple[str, ...]:
    target = find_target(
        "data.custom._target_", settings.custom["_target_"], settings.allow_targets
    )
    return accepted_names(target, ("split", "node_index"))
