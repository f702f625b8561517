"""How old a delta is when it is merged."""

from ray_diloco.protocol.terms import NEVER_HAD_A_GLOBAL


def staleness(*, outer_step: int, base_outer_step: int) -> int:
    """Outer steps between the delta's base and the merge; counted from bootstrap for a base of -1.

    ``outer_step`` is the global that the merge starts from, so a fresh delta has staleness 0.
    """
    return outer_step - max(base_outer_step, NEVER_HAD_A_GLOBAL + 1)
