"""When a run is over for one node."""

from ray_diloco.protocol.clock import Micros, micros
from ray_diloco.protocol.run import RunLimits


def reason_to_stop(
    limits: RunLimits, *, steps: int, now: Micros, tokens: int | None = None
) -> str | None:
    """Which limit was reached, None while none was. ``tokens``: of all nodes, for who knows
    them.
    """
    if limits.max_steps is not None and steps >= limits.max_steps:
        return f"run.max_steps={limits.max_steps} reached"
    if limits.max_seconds is not None and now >= micros(limits.max_seconds):
        return f"run.max_seconds={limits.max_seconds} reached"
    if limits.max_tokens is not None and tokens is not None and tokens >= limits.max_tokens:
        return f"run.max_tokens={limits.max_tokens} reached"
    return None
