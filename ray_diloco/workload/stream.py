"""Batches cut from one shard of byte text, for ever, and exactly resumable."""

from collections.abc import Iterator
from typing import Any

import torch

from ray_diloco.errors import ConfigError


class TextStream:
    """An endless iterable of (batch, time + 1) int64 batches: windows drawn uniformly, with
    replacement, from a shard.

    Owns its generator; the state is that generator's, so that a stream that loads it goes on with
    the very next batch.
    """

    def __init__(
        self, text: bytes, *, batch_size: int, sequence_length: int, generator: torch.Generator
    ) -> None:
        self._text = byte_tensor(text)
        self._batch_size = batch_size
        self._offsets = torch.arange(sequence_length + 1)
        self._starts = len(text) - sequence_length
        self._generator = generator

    @property
    def shard_tokens(self) -> int:
        """Size of the shard that the windows are drawn from."""
        return len(self._text)

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            starts = torch.randint(self._starts, (self._batch_size, 1), generator=self._generator)
            yield self._text[starts + self._offsets].long()

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self._generator.get_state(), "shard_tokens": self.shard_tokens}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """ConfigError when the state was saved over a shard of another size: its position would
        mean nothing here.
        """
        if state["shard_tokens"] != self.shard_tokens:
            raise ConfigError(
                "data.shard",
                f"{self.shard_tokens} tokens",
                f"the saved position is in a shard of {state['shard_tokens']} tokens",
            )
        self._generator.set_state(state["generator"])


def even_windows(
    text: bytes, *, batches: int, batch_size: int, sequence_length: int
) -> list[torch.Tensor]:
    """``batches`` of (batch, time + 1) int64, evenly spaced from the first byte to the last; no
    draw involved.
    """
    windows = batches * batch_size
    last = len(text) - sequence_length - 1
    starts = torch.tensor([last * window // max(1, windows - 1) for window in range(windows)])
    tokens = byte_tensor(text)[starts[:, None] + torch.arange(sequence_length + 1)].long()
    return list(tokens.split(batch_size))


def byte_tensor(text: bytes) -> torch.Tensor:
    """A uint8 tensor with its own copy of ``text``."""
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)
