"""From what the command line lists to what Optuna samples from, and back to words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from hydra.core.override_parser.types import (
    IntervalSweep,
    Override,
    RangeSweep,
)
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from ray_diloco.errors import ConfigError

LOG = "log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """``fixed``: the words that all trials have. ``searched``: by setting or group."""

    fixed: tuple[str, ...]
    searched: dict[str, BaseDistribution]

    def words(self, point: Mapping[str, Any]) -> list[str]:
        """The overrides of one trial."""
        return [*self.fixed, *(f"{name}={point[name]}" for name in self.searched)]

    def combinations(self) -> list[dict[str, Any]]:
        """Every point; the first list varies slowest. ConfigError for an interval."""
        values = [_values(name, each) for name, each in self.searched.items()]
        return [dict(zip(self.searched, each, strict=True)) for each in product(*values)]


def read_space(overrides: Sequence[Override]) -> Space:
    """Of a setting that is named twice the last one counts. ConfigError when there is nothing to
    search, and for a list that cannot be sampled.
    """
    fixed: dict[str, str] = {}
    searched: dict[str, BaseDistribution] = {}
    for override in overrides:
        key = override.get_key_element()
        fixed.pop(key, None)
        searched.pop(key, None)
        if override.is_sweep_override():
            searched[key] = distribution_of(override)
        else:
            fixed[key] = _word(override)
    if not searched:
        raise ConfigError(
            "hydra/sweeper", "optuna", "expected a setting with values, a range or an interval"
        )
    return Space(fixed=tuple(fixed.values()), searched=searched)


def distribution_of(override: Override) -> BaseDistribution:
    """An interval is continuous (of whole numbers as ``int(interval(a,b))``), a range has steps,
    and anything else is a choice between words. ``tag(log, ...)``: by orders of magnitude.
    """
    value = override.value()
    try:
        match value:
            case IntervalSweep():
                return _numbers(value.start, value.end, None, log=LOG in value.tags)
            case RangeSweep():
                steps: list[Any] = list(override.sweep_iterator())
                step = abs(value.step)
                return _numbers(min(steps), max(steps), step, log=LOG in value.tags)
            case _:
                return CategoricalDistribution(list(override.sweep_string_iterator()))
    except ValueError as error:
        given = str(override.input_line).partition("=")[2]
        raise ConfigError(override.get_key_element(), given, _reason(error)) from None


def _numbers(low: Any, high: Any, step: Any, *, log: bool) -> BaseDistribution:
    """ValueError for bounds and steps that do not go together."""
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=log, step=step or 1)
    return FloatDistribution(float(low), float(high), log=log, step=step and float(step))


def _values(name: str, distribution: BaseDistribution) -> list[Any]:
    match distribution:
        case CategoricalDistribution():
            return list(distribution.choices)
        case IntDistribution():
            return list(range(distribution.low, distribution.high + 1, distribution.step))
        case FloatDistribution(step=float() as step):
            count = round((distribution.high - distribution.low) / step) + 1
            return [distribution.low + index * step for index in range(count)]
        case _:
            raise ConfigError(name, "interval", "expected values or a range with sampler=grid")


def _word(override: Override) -> str:
    if override.is_delete():
        return str(override.input_line)
    return f"{override.get_key_element()}={override.get_value_element_as_str()}"


def _reason(error: ValueError) -> str:
    if "empty" in str(error):
        return "expected at least one value"
    return f"cannot be searched: {error}"
