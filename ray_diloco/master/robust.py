"""Averages that a few wrong deltas cannot move far.

Two kinds. Rules over columns look at each number by itself: ``columns`` is (deltas, numbers), the
result (numbers,). Rules over whole deltas need only their inner products, ``products``, (deltas,
deltas) in float64: distances follow from them, and the result is a sum of deltas with a share each.
"""

import statistics

import torch


def median(columns: torch.Tensor) -> torch.Tensor:
    """Of each number; of an even count the mean of the middle two. arXiv 1803.01498."""
    ordered = columns.sort(dim=0).values
    count = columns.shape[0]
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def trimmed_mean(columns: torch.Tensor, *, share: float) -> torch.Tensor:
    """Of each number without the largest and the smallest ``share`` of them, one of each at least.
    arXiv 1803.01498.
    """
    count = columns.shape[0]
    cut = min(max(1, int(share * count)), (count - 1) // 2)
    return columns.sort(dim=0).values[cut : count - cut].mean(dim=0)


def squared_distances(products: torch.Tensor) -> torch.Tensor:
    """Of each delta to each."""
    squares = products.diagonal()
    return (squares[:, None] + squares[None, :] - 2 * products).clamp_(min=0)


def krum(products: torch.Tensor, *, byzantine: int) -> tuple[float, ...]:
    """All share to the delta whose nearest n - f - 2 others are nearest. arXiv 1703.02757."""
    count = products.shape[0]
    distances = squared_distances(products).fill_diagonal_(float("inf"))
    nearest = distances.sort(dim=1).values[:, : count - byzantine - 2]
    chosen = int(nearest.sum(dim=1).argmin())
    return tuple(float(place == chosen) for place in range(count))


def norm_clip(products: torch.Tensor, *, radius: float | None) -> tuple[float, ...]:
    """What makes each delta no longer than ``radius``; None: than the median of their norms."""
    return clip_factors(_roots(products.diagonal()), radius)


def centered_clip(
    products: torch.Tensor, *, radius: float | None, iterations: int
) -> tuple[float, ...]:
    """Shares of a centre that starts at zero and moves, so many times, by the mean of the deltas'
    differences from it, each cut to ``radius``; None: to their median. arXiv 2012.10333.
    """
    count = products.shape[0]
    centre = torch.zeros(count, dtype=products.dtype)
    for _ in range(iterations):
        towards = products @ centre
        squares = products.diagonal() - 2 * towards + centre @ towards
        factors = torch.tensor(clip_factors(_roots(squares), radius), dtype=products.dtype)
        centre = centre * (1 - factors.sum() / count) + factors / count
    return tuple(centre.tolist())


def clip_factors(lengths: list[float], radius: float | None) -> tuple[float, ...]:
    """What makes each length at most the radius."""
    limit = statistics.median(lengths) if radius is None else radius
    return tuple(limit / length if length > limit else 1.0 for length in lengths)


def _roots(squares: torch.Tensor) -> list[float]:
    return squares.clamp(min=0).sqrt().tolist()
