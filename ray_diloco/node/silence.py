"""Boundaries at which a simulated node sends nothing, by lot: the dropped communication of DiLoCo
(arXiv 2311.08105). The steps stay in the baseline's difference and go out with a later delta.
"""

from collections.abc import Callable

from ray_diloco.protocol.seeds import seed_of

Silence = Callable[[int], bool]
"""Whether nothing is sent at the boundary after this local step."""


def silent_by_lot(share: float, *, run_seed: int, node_id: str) -> Silence:
    """In this share of the boundaries. Each lot hangs on its step alone, so that a node that starts
    again draws the same.
    """
    least = share * 2**64
    return lambda local_step: seed_of(run_seed, node_id, f"silent at {local_step}") < least


def never_silent(_local_step: int) -> bool:
    """A node that sends at every boundary."""
    return False
