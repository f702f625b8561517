"""What the exchange asks of whoever trains: the package's own trainer, or a loop of the user's."""

import math
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What one call of ``step`` did."""

    loss: float
    """Mean over the micro-batches, before the update; may be NaN or infinite."""
    tokens: int
    """Tokens computed, also when nothing was stepped."""
    stepped: bool
    """This was a local step; False: the scaled gradients overflowed and no weight changed."""
    grad_norm: float | None
    """L2 norm before clipping; None without clipping."""
    learning_rate: float
    """Of the first parameter group."""

    @property
    def finite(self) -> bool:
        """The loss is a number that training can go on from."""
        return math.isfinite(self.loss)


class Training(Protocol):
    """Owns model and inner optimizer. Between two steps the exchange may change the weights, in
    place.
    """

    local_step: int
    """Completed local steps. A node that continues the numbering of an earlier one sets it."""

    @property
    def tokens(self) -> int:
        """Of all completed steps."""
        ...

    @property
    def overflows(self) -> int:
        """Steps that came to nothing."""
        ...

    @property
    def fast_forwarded(self) -> int:
        """Batches drawn in vain by the last load, because the data cannot save its position."""
        ...

    def step(self) -> StepReport:
        """One local step, or the account of the one that was just taken elsewhere."""
        ...

    def reset_optimizer(self) -> None:
        """Drop the inner optimizer's state."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next step depends on, with ``model`` and ``optimizer`` among it.

        Tensors are the live ones.
        """
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where this was saved; ``optimizer`` None: it starts anew."""
        ...
