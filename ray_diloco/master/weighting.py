"""How much each delta of a round counts.

The size of what a delta was trained on only shares out the round: sizes have a mean of 1. Staleness
damps, as in its papers: a lone stale delta moves the global less than a fresh one would.
"""

from collections.abc import Sequence

from ray_diloco.protocol.delta_card import DeltaCard
from ray_diloco.protocol.settings import DilocoSettings
from ray_diloco.protocol.staleness import staleness


def size_of(card: DeltaCard, weighting: str) -> float | None:
    """What a delta weighs by what it was trained on; None when it does not say."""
    match weighting:
        case "tokens":
            return None if card.tokens is None else float(card.tokens)
        case "shard_size":
            return None if card.shard_tokens is None else float(card.shard_tokens)
        case _:
            return 1.0


def sizes_of(cards: Sequence[DeltaCard], weighting: str) -> tuple[float, ...]:
    """Of each delta; one that does not say, or says 0, counts as the mean of the others does."""
    found = [size_of(card, weighting) or None for card in cards]
    known = [size for size in found if size is not None]
    typical = sum(known) / len(known) if known else 1.0
    return tuple(typical if size is None else size for size in found)


def staleness_factor(settings: DilocoSettings, age: int) -> float:
    """How much a delta counts whose base is ``age`` outer steps old: 1 when it is fresh.

    poly and hinge: arXiv 1903.03934, section 5.2. Deltas that are too old for `drop` never get
    here.
    """
    match settings.staleness:
        case "poly":
            return (1.0 + age) ** -settings.staleness_exponent
        case "hinge":
            late = age - settings.staleness_after
            return 1.0 if late <= 0 else 1.0 / (settings.staleness_slope * late + 1.0)
        case _:
            return 1.0


def staleness_factors(
    settings: DilocoSettings, cards: Sequence[DeltaCard], *, outer_step: int
) -> tuple[float, ...]:
    """Of each delta, in a merge that starts from the global of ``outer_step``."""
    ages = (
        staleness(outer_step=outer_step, base_outer_step=card.base_outer_step) for card in cards
    )
    return tuple(staleness_factor(settings, age) for age in ages)


def shares_of(
    settings: DilocoSettings, cards: Sequence[DeltaCard], *, outer_step: int, nodes: int
) -> tuple[float, ...]:
    """What each delta is multiplied with before they are added up. ``nodes``: how many live, for
    divide=nodes: a lone early delta then moves the global by its share only.
    """
    sizes = sizes_of(cards, settings.weighting)
    factors = staleness_factors(settings, cards, outer_step=outer_step)
    scale = scale_of(settings, len(cards), nodes=nodes)
    total = sum(sizes)
    return tuple(scale * f * size / total for f, size in zip(factors, sizes, strict=True))


def scale_of(settings: DilocoSettings, arrivals: int, *, nodes: int) -> float:
    """What the average of so many arrivals is multiplied with."""
    return arrivals / max(nodes, 1) if settings.divide == "nodes" else 1.0
