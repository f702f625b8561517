"""What a stretch of local training amounts to: the steps, their tokens and their loss."""

from dataclasses import dataclass

from ray_diloco.protocol.ranges import NO_STEPS, StepRanges


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Local steps with the tokens they saw and the sum of their losses (nats per token, one a
    step).
    """

    steps: StepRanges = NO_STEPS
    tokens: int = 0
    loss_sum: float = 0.0

    def plus(self, other: "Work") -> "Work":
        return Work(
            steps=self.steps.union(other.steps),
            tokens=self.tokens + other.tokens,
            loss_sum=self.loss_sum + other.loss_sum,
        )

    def minus(self, other: "Work") -> "Work":
        """Without the other, which must be a part of it. Nothing is left of no steps, rounding of
        the losses least of all.
        """
        steps = self.steps.minus(other.steps)
        if not steps:
            return NO_WORK
        return Work(
            steps=steps,
            tokens=self.tokens - other.tokens,
            loss_sum=self.loss_sum - other.loss_sum,
        )

    @property
    def mean_loss(self) -> float | None:
        """None when there are no steps."""
        return self.loss_sum / len(self.steps) if self.steps else None

    def __bool__(self) -> bool:
        return bool(self.steps)


NO_WORK = Work()
