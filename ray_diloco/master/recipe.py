"""What one round does with its deltas, decided before the walk over their numbers. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from ray_diloco.master.outer_optimizer import OuterOptimizer, Turn
from ray_diloco.master.robust import centered_clip, krum, median, norm_clip, trimmed_mean
from ray_diloco.master.weighting import scale_of, shares_of, sizes_of, staleness_factors
from ray_diloco.protocol.delta_card import DeltaCard
from ray_diloco.protocol.rules import deltas_needed
from ray_diloco.protocol.settings import DilocoSettings

PLAIN = DilocoSettings()

Columns = Callable[[torch.Tensor], torch.Tensor]
"""(deltas, numbers) to (numbers,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """``turns``: one, or one for each delta where the outer optimizer takes them by arrival.
    ``shares``: what each delta is multiplied with; None without ``columns``: the plain mean.
    ``scale``: what the result of ``columns`` is multiplied with. ``aggregation``: that was used.
    """

    turns: tuple[Turn, ...]
    shares: tuple[float, ...] | None = None
    columns: Columns | None = None
    scale: float = 1.0
    aggregation: str = "mean"

    def counts(self, place: int) -> bool:
        """Whether this delta is part of the result at all."""
        return self.shares is None or self.shares[place] != 0


def needs_products(settings: DilocoSettings, deltas: int) -> bool:
    """Whether the rule asks for the deltas' inner products first."""
    whole = settings.aggregation in ("krum", "centered_clip", "norm_clip")
    return whole and deltas >= deltas_needed(settings)


def recipe_for(
    settings: DilocoSettings,
    optimizer: OuterOptimizer,
    cards: Sequence[DeltaCard],
    *,
    last: Turn,
    outer_step: int,
    nodes: int,
    products: torch.Tensor | None = None,
) -> Recipe:
    """For deltas in merge order. ``last``: the turn before this round. ``outer_step``: of the
    global that it starts from. ``nodes``: how many live. ``products``: where `needs_products`.
    """
    if optimizer.by_arrival:
        return _by_arrival(settings, optimizer, cards, last=last, outer_step=outer_step)
    turns = (last.next(),) if optimizer.counts else (Turn(),)
    enough = len(cards) >= deltas_needed(settings)
    scale = scale_of(settings, len(cards), nodes=nodes)
    columns = _columns(settings) if enough else None
    if columns is not None:
        return Recipe(turns=turns, columns=columns, scale=scale, aggregation=settings.aggregation)
    if products is not None:
        shares = shares_of(settings, cards, outer_step=outer_step, nodes=nodes)
        return Recipe(
            turns=turns,
            shares=_whole(settings, products, shares, scale),
            aggregation=settings.aggregation,
        )
    if _is_plain(settings):
        return Recipe(turns=turns)
    shares = shares_of(settings, cards, outer_step=outer_step, nodes=nodes)
    return Recipe(turns=turns, shares=shares)


def _by_arrival(
    settings: DilocoSettings,
    optimizer: OuterOptimizer,
    cards: Sequence[DeltaCard],
    *,
    last: Turn,
    outer_step: int,
) -> Recipe:
    sizes = sizes_of(cards, settings.weighting)
    factors = staleness_factors(settings, cards, outer_step=outer_step)
    turns: list[Turn] = []
    for size in sizes:
        turns.append(last.next(size))
        last = turns[-1].left(optimizer)
    shares = tuple(factor * size for factor, size in zip(factors, sizes, strict=True))
    return Recipe(turns=tuple(turns), shares=shares)


def _is_plain(settings: DilocoSettings) -> bool:
    damped = settings.staleness not in ("constant", "drop")
    return settings.weighting == "equal" and settings.divide == "arrivals" and not damped


def _columns(settings: DilocoSettings) -> Columns | None:
    match settings.aggregation:
        case "median":
            return median
        case "trimmed_mean":
            return partial(trimmed_mean, share=settings.trim_share)
        case _:
            return None


def _whole(
    settings: DilocoSettings, products: torch.Tensor, shares: tuple[float, ...], scale: float
) -> tuple[float, ...]:
    radius = settings.clip_radius
    match settings.aggregation:
        case "krum":
            found = krum(products, byzantine=settings.byzantine)
        case "centered_clip":
            found = centered_clip(products, radius=radius, iterations=settings.clip_iterations)
        case _:
            factors = norm_clip(products, radius=radius)
            return tuple(f * share for f, share in zip(factors, shares, strict=True))
    return tuple(scale * each for each in found)
