"""What a sweep says: the mean and spread of each point over its seeds, and what each swept setting
does when everything else stays the same.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from ray_diloco.experiment.sweep.rows import Row, Status, swept

SEED = "run.seed"
CLUSTER = "cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """All trials that differ in nothing but their seed. ``values``: the objective, in the order of
    the seeds.
    """

    settings: dict[str, Any]
    rows: tuple[Row, ...]
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def spread(self) -> float | None:
        """Standard deviation over the seeds; None of a single one."""
        return stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One value of a swept setting. ``difference``: mean of the objective minus that with the
    setting's first value, over the ``pairs`` of trials that are equal in all else, seed included;
    None of the first value and where there is no pair. ``error``: the standard error of that mean.
    """

    value: Any
    mean: float
    trials: int
    difference: float | None = None
    error: float | None = None
    pairs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a swept setting does. ``range``: between the means of its best and worst value."""

    setting: str
    levels: tuple[Level, ...] = field(default_factory=tuple[Level, ...])

    @property
    def range(self) -> float:
        means = [level.mean for level in self.levels]
        return max(means) - min(means)


def value_of(row: Row, objective: str) -> float | None:
    """The objective of a trial that came to its end; None when it has none, or no finite one."""
    value = row.numbers.get(objective)
    if row.status is not Status.done or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def points(rows: Sequence[Row], objective: str) -> list[Point]:
    """The points with at least one value, the best first (the least mean)."""
    names = swept(rows)
    by_point: dict[str, list[Row]] = {}
    for row in rows:
        if value_of(row, objective) is not None:
            by_point.setdefault(_identity(row, names), []).append(row)
    found = [_point(group, names, objective) for group in by_point.values()]
    return sorted(found, key=lambda point: point.mean)


def effects(rows: Sequence[Row], objective: str) -> list[Effect]:
    """Of each swept setting, the strongest first."""
    good = [row for row in rows if value_of(row, objective) is not None]
    found = [
        Effect(setting=name, levels=tuple(_levels(good, name, values, objective)))
        for name, values in swept(good).items()
    ]
    return sorted(found, key=lambda effect: -effect.range)


def best_per_cluster(rows: Sequence[Row], objective: str) -> dict[str, Point]:
    """By cluster file, the best point on it."""
    found: dict[str, Point] = {}
    for point in points(rows, objective):
        found.setdefault(point.rows[0].choices.get(CLUSTER, ""), point)
    return found


def compared(
    ours: Sequence[Row], theirs: Sequence[Row], objective: str
) -> list[tuple[Row, Row, float]]:
    """Trials of two sweeps with the same overrides, and by how much ours is above theirs."""
    by_identity = {_whole(row): row for row in theirs if value_of(row, objective) is not None}
    found: list[tuple[Row, Row, float]] = []
    for row in ours:
        other, value = by_identity.get(_whole(row)), value_of(row, objective)
        if other is not None and value is not None:
            found.append((row, other, value - (value_of(other, objective) or 0.0)))
    return found


def _point(group: Sequence[Row], names: Iterable[str], objective: str) -> Point:
    ordered = sorted(group, key=lambda row: (row.seed or 0, row.trial))
    values = [value_of(row, objective) for row in ordered]
    return Point(
        settings={name: ordered[0].overrides.get(name) for name in names},
        rows=tuple(ordered),
        values=tuple(value for value in values if value is not None),
    )


def _levels(
    rows: Sequence[Row], name: str, values: Sequence[Any], objective: str
) -> Iterable[Level]:
    """``rows`` have values. Each level is paired with the first one."""
    others = [each for each in swept(rows) if each != name]
    tables = [_by_rest(rows, name, value, others, objective) for value in values]
    for value, table in zip(values, tables, strict=True):
        pairs = [table[rest] - tables[0][rest] for rest in table if rest in tables[0]]
        first = table is tables[0]
        yield Level(
            value=value,
            mean=fmean(table.values()),
            trials=len(table),
            difference=fmean(pairs) if pairs and not first else None,
            error=stdev(pairs) / math.sqrt(len(pairs)) if len(pairs) > 1 and not first else None,
            pairs=0 if first else len(pairs),
        )


def _by_rest(
    rows: Sequence[Row], name: str, value: Any, others: Iterable[str], objective: str
) -> Mapping[str, float]:
    """The objective of the trials with this value, by everything else that was swept."""
    return {
        _identity(row, [*others, SEED], seed=row.seed): value_of(row, objective) or 0.0
        for row in rows
        if row.overrides.get(name) == value
    }


def _identity(row: Row, names: Iterable[str], seed: int | None = None) -> str:
    kept = [row.overrides.get(name) for name in names if name != SEED]
    return json.dumps([kept, seed])


def _whole(row: Row) -> str:
    return json.dumps([sorted(row.overrides.items()), row.seed], default=str)
