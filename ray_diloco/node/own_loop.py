"""A training loop that is somebody else's, as the exchange sees it."""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import nn

from ray_diloco.errors import ConfigError
from ray_diloco.node.feed import is_plain
from ray_diloco.node.training import StepReport
from ray_diloco.protocol.kinds import check_kind


class Stateful(Protocol):
    """What can be saved and taken up again: a learning-rate schedule, a scaler, a data loader."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any) -> Any: ...


class OwnLoop:
    """The model and the optimizer of a loop that runs elsewhere; `note` tells what it did."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        parts: Mapping[str, Stateful] | None = None,
    ) -> None:
        """``parts``: what else a checkpoint holds, by name. ConfigError for a part whose state is
        not plain: numbers, texts, tensors, and containers of them; and for an optimizer that
        changes nothing of the model.
        """
        _require_optimizer_of(model, optimizer)
        self.model = model
        self.optimizer = optimizer
        self.local_step = 0
        self.tokens = 0
        self.overflows = 0
        self.fast_forwarded = 0
        self._parts = dict(parts or {})
        self._noted: StepReport | None = None
        for name, part in self._parts.items():
            if not is_plain(part.state_dict()):
                raise ConfigError(
                    f"parts[{name!r}]",
                    type(part).__name__,
                    "expected a state of numbers, texts, tensors, and lists and dicts of them",
                )

    def note(self, *, loss: float | None, tokens: int) -> None:
        """The loop took an optimizer step. ``loss`` in nats per token, None when not known.
        ConfigError for what is no loss, or no number of tokens.
        """
        check_kind("loss", loss, float | None)
        check_kind("tokens", tokens, int)
        if tokens < 0:
            raise ConfigError("tokens", tokens, "expected at least 0")
        rate = self.optimizer.param_groups[0].get("lr", 0.0)
        self._noted = StepReport(
            loss=float("nan") if loss is None else loss,
            tokens=tokens,
            stepped=True,
            grad_norm=None,
            learning_rate=float(rate),
        )

    def step(self) -> StepReport:
        """The account of the step that was noted."""
        report, self._noted = self._noted, None
        assert report is not None, "a step is noted before it is accounted for"
        self.local_step += 1
        self.tokens += report.tokens
        return report

    def reset_optimizer(self) -> None:
        """Drop the state of every parameter; learning rates and all other options stay."""
        self.optimizer.state.clear()

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "parts": {name: part.state_dict() for name, part in self._parts.items()},
            "local_step": self.local_step,
            "tokens": self.tokens,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """ConfigError when the checkpoint was made with other parts."""
        saved: dict[str, Any] = state["parts"]
        if saved.keys() != self._parts.keys():
            raise ConfigError("parts", sorted(self._parts), f"expected {sorted(saved)}, as saved")
        self.model.load_state_dict(state["model"])
        if state["optimizer"] is None:
            self.reset_optimizer()
        else:
            self.optimizer.load_state_dict(state["optimizer"])
        for name, part in self._parts.items():
            part.load_state_dict(saved[name])
        self.local_step = state["local_step"]
        self.tokens = state["tokens"]


def _require_optimizer_of(model: nn.Module, optimizer: Any) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError("optimizer", repr(optimizer), "expected a torch.optim.Optimizer")
    own = {id(parameter) for parameter in model.parameters()}
    changed = {id(each) for group in optimizer.param_groups for each in group["params"]}
    if not own & changed:
        expected = "expected one of the model's parameters: of this one it would change none"
        raise ConfigError("optimizer", type(optimizer).__name__, expected)
