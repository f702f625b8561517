"""Autocast and the loss scaler: in which numbers a step is computed."""

from typing import Any

import torch

_AUTOCAST = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """``fp32``, or autocast to ``bf16`` or ``fp16``; only fp16, with its short range, is scaled."""

    def __init__(self, name: str, device: torch.device) -> None:
        self._dtype = _AUTOCAST[name]
        self._device_type = device.type
        self._scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")

    def autocast(self) -> torch.autocast:
        return torch.autocast(self._device_type, dtype=self._dtype, enabled=self._dtype is not None)

    def backward(self, loss: torch.Tensor) -> None:
        self._scaler.scale(loss).backward()

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Bring the gradients to their true size, as clipping needs them."""
        self._scaler.unscale_(optimizer)

    def update(self, optimizer: torch.optim.Optimizer) -> bool:
        """Step the optimizer; False when the gradients overflowed and nothing was stepped."""
        scale = self._scaler.get_scale()
        self._scaler.step(optimizer)
        self._scaler.update()
        return self._scaler.get_scale() >= scale

    def state_dict(self) -> dict[str, Any]:
        return self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Empty, as saved without a scaler: the scale starts anew."""
        if state:
            self._scaler.load_state_dict(state)
