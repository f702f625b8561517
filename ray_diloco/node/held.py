"""A state held still while a lane writes it: one copy, into memory kept for the next time."""

import copy
from typing import Any

import torch

from ray_diloco.tensors.snapshot import copy_tensors


class Held:
    """The tensors of one nested state at a time, on the CPU."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, ...], torch.Tensor] = {}

    @torch.no_grad()
    def hold(self, state: Any) -> Any:
        """The same dicts and lists with copies of what is in them, valid until the next call. When
        it returns, the state may change.
        """
        sources: list[torch.Tensor] = []
        copies: list[torch.Tensor] = []
        held = self._held(state, (), sources, copies)
        copy_tensors(sources, copies)
        if any(source.is_cuda for source in sources):
            torch.cuda.synchronize()
        return held

    def _held(
        self,
        value: Any,
        place: tuple[Any, ...],
        sources: list[torch.Tensor],
        copies: list[torch.Tensor],
    ) -> Any:
        match value:
            case torch.Tensor(layout=torch.strided):
                sources.append(value.detach())
                copies.append(self._buffer(value, place))
                return copies[-1]
            case dict():
                return {
                    key: self._held(each, (*place, key), sources, copies)
                    for key, each in value.items()
                }
            case list():
                return [
                    self._held(each, (*place, index), sources, copies)
                    for index, each in enumerate(value)
                ]
            case _:
                return copy.deepcopy(value)

    def _buffer(self, value: torch.Tensor, place: tuple[Any, ...]) -> torch.Tensor:
        kept = self._kept.get(place)
        if kept is None or kept.shape != value.shape or kept.dtype != value.dtype:
            kept = self._kept[place] = torch.empty(value.shape, dtype=value.dtype)
        return kept
