"""Local training: batches in, weights changed in place. Knows nothing of nodes, the hub or time."""

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from ray_diloco.errors import TrainingError
from ray_diloco.node.feed import BatchFeed
from ray_diloco.node.precision import Precision
from ray_diloco.node.training import StepReport
from ray_diloco.workload.data import shard_tokens
from ray_diloco.workload.lent_draws import LentDraws
from ray_diloco.workload.loss import batch_loss, count_tokens, move_batch
from ray_diloco.workload.optimizers import build_optimizer
from ray_diloco.workload.schedules import schedule_factor, set_learning_rate
from ray_diloco.workload.seeds import derived_seed
from ray_diloco.workload.settings import InnerSettings


class Trainer:
    """Owns the model, the inner optimizer, its schedule and the batches.

    The caller may change the weights between two steps (an installation), in place: the optimizer
    holds the same tensors. A loss that is not finite is reported and, in fp32 and bf16, stepped all
    the same: whether to go on is the caller's choice.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Iterable[Any],
        settings: InnerSettings,
        *,
        device: torch.device | None = None,
        seed: int = 0,
    ) -> None:
        """``seed``: for draws in the forward pass, such as dropout. ``device`` None: the CPU."""
        self._device = device or torch.device("cpu")
        self._settings = settings
        self.model: nn.Module = getattr(model, "_orig_mod", model).to(self._device).train()
        """Never the compiled wrapper, whose names differ."""
        self._forward = torch.compile(self.model) if settings.compile else self.model
        self._optimizer = build_optimizer(self.model, settings)
        self._precision = Precision(settings.precision, self._device)
        self._feed = BatchFeed(batches)
        self._draws = LentDraws(derived_seed(seed, "forward"), self._device)
        self._lends_draws = draws_in_forward(self.model)
        self.shard_tokens = shard_tokens(batches)
        """Size of the data that the batches are drawn from; None when they do not tell."""
        self.local_step = 0
        """Completed updates; also the position in the schedule. A node that continues the numbering
        of an earlier one sets it.
        """
        self.tokens = 0
        """Tokens of all completed updates."""
        self.overflows = 0
        """Steps that came to nothing, in all."""
        self._overflows_in_a_row = 0

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The present one; a reset replaces it."""
        return self._optimizer

    @property
    def fast_forwarded(self) -> int:
        """Batches drawn in vain by the last load, because the data cannot save its position."""
        return self._feed.fast_forwarded

    def step(self) -> StepReport:
        """``accumulation`` micro-batches, then one update.

        TrainingError when the data ends for good, when a batch makes no loss, or after
        ``max_skipped_steps`` overflows in a row.
        """
        set_learning_rate(self._optimizer, schedule_factor(self._settings, self.local_step))
        learning_rate = float(self._optimizer.param_groups[0]["lr"])
        loss, tokens = self._accumulate()
        grad_norm = self._clip()
        stepped = self._precision.update(self._optimizer)
        self._optimizer.zero_grad(set_to_none=True)
        self._count(stepped, tokens)
        return StepReport(
            loss=loss.item(),
            tokens=tokens,
            stepped=stepped,
            grad_norm=None if grad_norm is None else grad_norm.item(),
            learning_rate=learning_rate,
        )

    def reset_optimizer(self) -> None:
        """Start the inner optimizer anew. The schedule goes on, and so does the loss scale: it
        belongs to the size of the gradients, which a reset does not change.
        """
        self._optimizer = build_optimizer(self.model, self._settings)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next step depends on; tensors are the live ones, not copies."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "scaler": self._precision.state_dict(),
            "data": self._feed.state_dict(),
            "draws": self._draws.state_dict(),
            "local_step": self.local_step,
            "tokens": self.tokens,
            "overflows": self.overflows,
            "overflows_in_a_row": self._overflows_in_a_row,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state`` was saved: the next step is the one that would have followed.
        ``optimizer`` may be None: it starts anew.
        """
        self.model.load_state_dict(state["model"])
        self.reset_optimizer()
        if state["optimizer"] is not None:
            self._optimizer.load_state_dict(state["optimizer"])
        self._precision.load_state_dict(state["scaler"])
        self._feed.load_state_dict(state["data"])
        self._draws.load_state_dict(state["draws"])
        self.local_step = state["local_step"]
        self.tokens = state["tokens"]
        self.overflows = state["overflows"]
        self._overflows_in_a_row = state["overflows_in_a_row"]

    def _accumulate(self) -> tuple[torch.Tensor, int]:
        """Gradients of the mean over the micro-batches; their mean loss and tokens."""
        micro_batches = self._settings.accumulation
        total, tokens = torch.zeros((), device=self._device), 0
        with self._draws.lent() if self._lends_draws else nullcontext():
            for _ in range(micro_batches):
                batch = self._feed.draw()
                tokens += count_tokens(batch)
                loss = self._loss(batch) / micro_batches
                self._precision.backward(loss)
                total += loss.detach()
        return total, tokens

    def _loss(self, batch: Any) -> torch.Tensor:
        with self._precision.autocast():
            return batch_loss(self.model, move_batch(batch, self._device), forward=self._forward)

    def _clip(self) -> torch.Tensor | None:
        if self._settings.clip_norm is None:
            return None
        self._precision.unscale(self._optimizer)
        return nn.utils.clip_grad_norm_(self.model.parameters(), self._settings.clip_norm)

    def _count(self, stepped: bool, tokens: int) -> None:
        if stepped:
            self.local_step += 1
            self.tokens += tokens
            self._overflows_in_a_row = 0
            return
        self.overflows += 1
        self._overflows_in_a_row += 1
        if self._overflows_in_a_row >= self._settings.max_skipped_steps:
            raise TrainingError(
                f"the gradients overflowed {self._overflows_in_a_row} times in a row at local step "
                f"{self.local_step}; expected a lower inner.learning_rate or inner.precision=bf16"
            )


def draws_in_forward(model: nn.Module) -> bool:
    """The model has active dropout layers, whose draws come from torch's global generator."""
    return any(
        "dropout" in type(module).__name__.lower() and getattr(module, "p", 0) > 0
        for module in model.modules()
    )
