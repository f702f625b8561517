"""Losses of trials that run at different speeds, at the same times of the run."""

from dataclasses import dataclass

SLACK = 1e-9
"""Of a mark: ``k * every`` is not exact."""


@dataclass(slots=True, kw_only=True)
class Marks:
    """Of one trial: mark ``k`` is at ``k * every`` seconds, from ``k = 1``."""

    every: float
    _passed: int = 0
    _loss: float | None = None

    def told(self, seconds: float, loss: float) -> list[tuple[int, float]]:
        """The marks that an evaluation at ``seconds`` shows to be passed, each with the loss that
        the trial had there: of its last evaluation until then. A mark before the first evaluation
        is left out.
        """
        before, self._loss = self._loss, loss
        reached = int(seconds / self.every + SLACK)
        exact = seconds <= reached * self.every * (1 + SLACK)
        found = [(mark, before) for mark in range(self._passed + 1, reached + 1)]
        self._passed = max(self._passed, reached)
        if found and exact:
            found[-1] = (reached, loss)
        return [(mark, value) for mark, value in found if value is not None]
