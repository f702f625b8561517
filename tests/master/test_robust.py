"""Robust averages against direct versions over whole deltas."""

import itertools

import numpy as np
import pytest
import torch

from ray_diloco.master.robust import (
    centered_clip,
    clip_factors,
    krum,
    median,
    norm_clip,
    squared_distances,
    trimmed_mean,
)

COUNTS = (3, 4, 5, 8, 9)


def deltas(count, size=57, seed=0):
    """As nodes send them: alike, but for the last, which is five times as long and turned round."""
    generator = torch.Generator().manual_seed(1000 * count + seed)
    common = torch.randn(size, dtype=torch.float64, generator=generator)
    own = torch.randn(count, size, dtype=torch.float64, generator=generator) / 3
    own += common
    own[-1] *= -5
    return own


def products_of(rows):
    return rows @ rows.T


def summed(shares, rows):
    return torch.tensor(shares, dtype=rows.dtype) @ rows


def near(found, wanted, scale=1.0) -> bool:
    return bool(np.abs(found.numpy() - wanted).max() < 1e-12 * scale)


@pytest.mark.parametrize("count", COUNTS)
def test_the_median_is_numpys(count):
    rows = deltas(count)
    assert near(median(rows), np.median(rows.numpy(), axis=0))


@pytest.mark.parametrize(("count", "share"), [*itertools.product(COUNTS, (0.01, 0.25, 0.4))])
def test_the_trimmed_mean_leaves_out_the_ends_of_each_number(count, share):
    rows = deltas(count)
    wanted = []
    for column in rows.numpy().T:
        ordered = sorted(column)
        cut = max(1, int(share * count))
        cut = cut if count > 2 * cut else (count - 1) // 2
        wanted.append(sum(ordered[cut : count - cut]) / (count - 2 * cut))
    assert near(trimmed_mean(rows, share=share), np.array(wanted), scale=10)


@pytest.mark.parametrize("count", COUNTS)
def test_distances_follow_from_inner_products(count):
    rows = deltas(count).numpy()
    wanted = ((rows[:, None] - rows[None, :]) ** 2).sum(axis=2)
    assert near(squared_distances(products_of(torch.tensor(rows))), wanted, scale=1e4)


@pytest.mark.parametrize(
    ("count", "byzantine", "seed"),
    [(n, f, seed) for n in (5, 6, 8, 9) for f in (1, 2, 3) for seed in (0, 1) if n >= 2 * f + 3],
)
def test_krum_chooses_as_its_paper_says(count, byzantine, seed):
    rows = deltas(count, seed=seed)
    scores = []
    for one in range(count):
        others = sorted(
            float(((rows[one] - rows[other]) ** 2).sum()) for other in range(count) if other != one
        )
        scores.append(sum(others[: count - byzantine - 2]))
    shares = krum(products_of(rows), byzantine=byzantine)
    assert sum(shares) == 1
    assert shares[int(np.argmin(scores))] == 1
    assert shares[-1] == 0


@pytest.mark.parametrize(("count", "radius"), [*itertools.product(COUNTS, (0.5, 4.0, 1e6, None))])
def test_norm_clip_is_the_mean_of_shortened_deltas(count, radius):
    rows = deltas(count)
    norms = rows.norm(dim=1)
    limit = float(np.median(norms)) if radius is None else radius
    wanted = np.mean(
        [
            row * min(1, limit / norm)
            for row, norm in zip(rows.numpy(), norms.tolist(), strict=True)
        ],
        axis=0,
    )
    shares = [factor / count for factor in norm_clip(products_of(rows), radius=radius)]
    assert near(summed(shares, rows), wanted)


@pytest.mark.parametrize(
    ("count", "radius", "iterations"),
    [*itertools.product(COUNTS, (0.5, 4.0, 1e6, None), (1, 2, 5))],
)
def test_centered_clip_moves_its_centre_as_its_paper_says(count, radius, iterations):
    rows = deltas(count)
    centre = torch.zeros(rows.shape[1], dtype=rows.dtype)
    for _ in range(iterations):
        lengths = (rows - centre).norm(dim=1)
        limit = float(np.median(lengths)) if radius is None else radius
        factors = (limit / lengths).clamp(max=1)
        centre = centre + (factors[:, None] * (rows - centre)).mean(dim=0)
    shares = centered_clip(products_of(rows), radius=radius, iterations=iterations)
    assert near(summed(shares, rows), centre.numpy(), scale=10)


def test_a_centre_without_a_limit_is_the_mean():
    rows = deltas(4)
    shares = centered_clip(products_of(rows), radius=1e9, iterations=3)
    assert near(summed(shares, rows), rows.mean(dim=0).numpy(), scale=10)


def test_one_delta_that_is_turned_round_does_not_turn_the_result():
    rows = deltas(5)
    clean = rows[:-1].mean(dim=0)

    def error(found) -> float:
        return float((found - clean).norm() / clean.norm())

    products = products_of(rows)
    robust = [
        median(rows),
        trimmed_mean(rows, share=0.25),
        summed(krum(products, byzantine=1), rows),
        summed(centered_clip(products, radius=None, iterations=5), rows),
    ]
    assert error(rows.mean(dim=0)) > 1
    assert max(error(found) for found in robust) < 0.5


def test_a_delta_of_length_zero_is_not_lengthened():
    assert clip_factors([0.0, 2.0, 4.0], 2.0) == (1.0, 1.0, 0.5)
    assert clip_factors([0.0, 0.0, 0.0], None) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_raises_nothing_here(bad):
    rows = deltas(5)
    rows[2, 3] = bad
    products = products_of(rows)
    assert len(krum(products, byzantine=1)) == 5
    assert len(norm_clip(products, radius=None)) == 5
    assert len(centered_clip(products, radius=None, iterations=2)) == 5
