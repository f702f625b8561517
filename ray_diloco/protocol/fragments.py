"""Fragments of a model, each with boundaries of its own (Streaming DiLoCo, arXiv 2501.18512).

A delta then carries one fragment, and every local step has to be covered once for each of them. So
the books of node and master hold cells, a cell being one local step for one fragment: step s for
fragment f is the number ``f * STRIDE + s``. With one fragment cells are steps.
"""

from ray_diloco.protocol.ranges import NO_STEPS, StepRanges

STRIDE = 10**12
"""More local steps than any run takes."""


def gap(inner_steps: int, fragments: int) -> int:
    """Local steps from one boundary to the next, at least 1: each fragment has every P-th."""
    return max(1, inner_steps // fragments)


def fragment_due(local_step: int, *, apart: int, fragments: int) -> int | None:
    """Which fragment is sent after this step where boundaries are so many steps ``apart``: k mod P
    at the k-th; None between two.
    """
    boundary, beyond = divmod(local_step, apart)
    return None if beyond else boundary % fragments


def cells(steps: StepRanges, fragment: int) -> StepRanges:
    """These steps for one fragment."""
    shift = fragment * STRIDE
    return StepRanges(tuple((first + shift, last + shift) for first, last in steps.spans))


def cells_of_all(steps: StepRanges, fragments: int) -> StepRanges:
    """These steps for every fragment."""
    found = NO_STEPS
    for fragment in range(fragments):
        found = found.union(cells(steps, fragment))
    return found


def tokens_for(fragment: int, tokens: int, *, fragments: int) -> int:
    """A fragment's share of the tokens of a step, so that all shares together are the tokens."""
    return tokens // fragments + (fragment < tokens % fragments)


def described(cells: StepRanges) -> str:
    """The cells of one delta, to be read: "1-20" of the first fragment, "1-20 of fragment 1" of the
    next.
    """
    fragment = cells.last // STRIDE if cells else 0
    return f"{steps_of(cells)} of fragment {fragment}" if fragment else str(cells)


def changed_since(outer_step: int, changed_at: tuple[int, ...]) -> tuple[int, ...]:
    """The fragments that a global has new for a node that has the one of ``outer_step``.
    ``changed_at``: the outer step of each fragment's last change.
    """
    return tuple(fragment for fragment, step in enumerate(changed_at) if step > outer_step)


def steps_of(cells: StepRanges) -> StepRanges:
    """The local steps that these cells are of, each once."""
    found = NO_STEPS
    for first, last in cells.spans:  # cells of two fragments never touch: there is no step 0
        shift = first // STRIDE * STRIDE
        found = found.union(StepRanges.of(first - shift, last - shift))
    return found
