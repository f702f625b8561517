"""torch's global generator, lent for a while to code that can draw from nothing else: constructors
of layers, dropout.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_LENDING = threading.Lock()
"""Nodes may be threads of one process: a second borrower waits, or draws would depend on timing."""


class LentDraws:
    """A sequence of draws of its own, on the CPU and, where that is the device, on CUDA."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._device = device if device.type == "cuda" else None
        self._states = {"cpu": torch.Generator().manual_seed(seed).get_state()}
        if self._device is not None:
            generator = torch.Generator(self._device).manual_seed(seed)
            self._states["cuda"] = generator.get_state()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Inside, global draws continue this sequence; afterwards they are as they were."""
        with _LENDING:
            before = self._current()
            self._set(self._states)
            try:
                yield
            finally:
                self._states = self._current()
                self._set(before)

    def state_dict(self) -> dict[str, Any]:
        return dict(self._states)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """A state saved on another kind of device leaves this device's own sequence as it is."""
        self._states = {name: state.get(name, value) for name, value in self._states.items()}

    def _current(self) -> dict[str, torch.Tensor]:
        states = {"cpu": torch.get_rng_state()}
        if self._device is not None:
            states["cuda"] = torch.cuda.get_rng_state(self._device)
        return states

    def _set(self, states: dict[str, torch.Tensor]) -> None:
        torch.set_rng_state(states["cpu"])
        if self._device is not None:
            torch.cuda.set_rng_state(states["cuda"], self._device)
