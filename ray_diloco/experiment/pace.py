"""How fast a run goes and what is left of it, from what its participants say. Seconds of the run's
time.
"""

from ray_diloco.cluster.engine import View
from ray_diloco.protocol.clock import MICROS_PER_SECOND, Clock
from ray_diloco.protocol.run import NodeStatus, RunLimits


def elapsed_seconds(view: View) -> float:
    """The run's time, as the most advanced participant has it."""
    times = [node.now for node in view.nodes] + ([view.master.now] if view.master else [])
    return max(times, default=0) / MICROS_PER_SECOND


class Speed:
    """How many seconds of virtual time pass in a real one, start-up left out."""

    def __init__(self, clock: Clock) -> None:
        """``clock``: real time."""
        self._clock = clock
        self._first: tuple[float, float] | None = None

    def at(self, view: View) -> float:
        """Mean since time began to pass; 0 before that."""
        virtual, real = elapsed_seconds(view), self._clock.now() / MICROS_PER_SECOND
        if self._first is None:
            self._first = (virtual, real) if virtual > 0 else None
            return 0.0
        since = real - self._first[1]
        return (virtual - self._first[0]) / since if since > 0 else 0.0


def tokens_per_second(node: NodeStatus) -> float | None:
    """Mean since the node's first step; None before it."""
    if node.training_since is None or node.now <= node.training_since:
        return None
    tokens = node.tokens - node.tokens_before
    return tokens * MICROS_PER_SECOND / (node.now - node.training_since)


def seconds_left(view: View, limits: RunLimits) -> float | None:
    """Until the first limit is reached, if all goes on as so far; None when not known yet."""
    estimates = [
        _left_by_steps(view, limits.max_steps),
        _left_by_time(view, limits.max_seconds),
        _left_by_tokens(view, limits.max_tokens),
    ]
    return min((each for each in estimates if each is not None), default=None)


def _left_by_steps(view: View, most: int | None) -> float | None:
    """Of the node that will be the last."""
    rates = [
        (
            node.local_step,
            (node.now - node.training_since)
            / MICROS_PER_SECOND
            / (node.local_step - node.steps_before),
        )
        for node in view.nodes
        if node.training_since is not None and node.local_step > node.steps_before
    ]
    if most is None or not rates or len(rates) < len(view.nodes):
        return None
    return max(max(0, most - steps) * seconds for steps, seconds in rates)


def _left_by_time(view: View, most: float | None) -> float | None:
    return None if most is None else max(0.0, most - elapsed_seconds(view))


def _left_by_tokens(view: View, most: int | None) -> float | None:
    done = view.master.tokens_total if view.master else sum(node.tokens for node in view.nodes)
    if most is None or done == 0:
        return None
    return max(0, most - done) * elapsed_seconds(view) / done
