"""The batches of a node, epoch after epoch, with a position that survives a restart."""

import itertools
import logging
from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch

from ray_diloco.errors import TrainingError

_log = logging.getLogger(__name__)


class BatchFeed:
    """Draws from an iterable and starts it anew when it ends.

    An iterable with ``set_epoch(epoch)`` is told each new epoch. One with ``state_dict()`` and
    ``load_state_dict()`` resumes exactly, if its state is plain: numbers, texts, tensors, and
    containers of them. Any other is started again and drawn from until it is where it was, which is
    exact if it gives the same batches each time.
    """

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches
        self._iterator: Iterator[Any] | None = None
        self._epoch = 0
        self._drawn = 0
        self.fast_forwarded = 0
        """Batches thrown away to find the position again, since the last load."""

    def draw(self) -> Any:
        """The next batch; TrainingError when the iterable has none, even started anew."""
        if self._iterator is None:
            self._iterator = self._start()
        try:
            batch = next(self._iterator)
        except StopIteration:
            batch = self._draw_from_new_epoch()
        self._drawn += 1
        return batch

    def state_dict(self) -> dict[str, Any]:
        """``epoch``, ``drawn`` (batches of this epoch) and, where the iterable has one,
        ``batches``: its state.
        """
        state: dict[str, Any] = {"epoch": self._epoch, "drawn": self._drawn}
        if self._saves_position():
            position = self._batches.state_dict()  # pyright: ignore[reportAttributeAccessIssue]
            if is_plain(position):
                state["batches"] = position
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._epoch, self._drawn, self.fast_forwarded = state["epoch"], state["drawn"], 0
        if self._saves_position() and "batches" in state:
            self._batches.load_state_dict(state["batches"])  # pyright: ignore[reportAttributeAccessIssue]
            self._iterator = self._start()
        else:
            self._fast_forward()

    def _saves_position(self) -> bool:
        return hasattr(self._batches, "state_dict") and hasattr(self._batches, "load_state_dict")

    def _start(self) -> Iterator[Any]:
        if hasattr(self._batches, "set_epoch"):
            self._batches.set_epoch(self._epoch)  # pyright: ignore[reportAttributeAccessIssue]
        return iter(self._batches)

    def _draw_from_new_epoch(self) -> Any:
        self._epoch += 1
        ended_after, self._drawn = self._drawn, 0
        self._iterator = self._start()
        try:
            return next(self._iterator)
        except StopIteration:
            raise TrainingError(
                f"the data ended after {ended_after} batches and gives none when it is iterated "
                "again: expected an iterable that can be restarted, not an iterator"
            ) from None

    def _fast_forward(self) -> None:
        self._iterator = self._start()
        for _ in itertools.islice(self._iterator, self._drawn):
            self.fast_forwarded += 1
        if self.fast_forwarded:
            _log.warning(
                "the data cannot save its position: drew %d batches to find it again",
                self.fast_forwarded,
            )


def is_plain(value: Any) -> bool:
    """A checkpoint can hold it: reading one back runs no code of anybody's."""
    match value:
        case None | bool() | int() | float() | str() | bytes() | torch.Tensor():
            return True
        case dict():
            each = cast(dict[Any, Any], value).items()
            return type(value) is dict and all(is_plain(k) and is_plain(v) for k, v in each)
        case list() | tuple():
            plain = type(value) in (list, tuple)
            return plain and all(is_plain(each) for each in cast(list[Any], value))
        case _:
            return False
