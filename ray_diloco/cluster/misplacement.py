"""Why an actor of a run finds no machine, as an error that names the setting. Pure."""

from collections.abc import Mapping, Sequence

from ray_diloco.cluster.labels import fits_labels
from ray_diloco.cluster.placement import (
    ROUNDING,
    Ask,
    Machine,
    NoPlace,
    Placement,
    Places,
    Strategy,
    place,
    suits,
)
from ray_diloco.errors import ConfigError

GIB = 1 << 30
_SETTINGS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory_gb"}
_NAMES = {"CPU": "CPUs", "GPU": "GPUs", "memory": "GiB of memory"}


def require_places(
    wanted: Placement, machines: Sequence[Machine], *, placed: Mapping[str, str] | None = None
) -> Places:
    """See `place`; ConfigError for the first that no machine can take."""
    for name, ask in wanted.asks.items():
        if name not in (placed or {}) and not any(suits(ask, each) for each in machines):
            raise _unsuitable(name, ask, machines)
    try:
        return place(wanted, machines, placed=placed)
    except NoPlace as error:
        raise _filled(error.name, wanted, machines) from None


def _unsuitable(name: str, ask: Ask, machines: Sequence[Machine]) -> ConfigError:
    """No machine could take it, even alone."""
    labelled = [each for each in machines if fits_labels(ask.labels, each.labels)]
    if not labelled:
        return _unlabelled(name, ask, machines)
    for resource, amount in ask.resources.items():
        most = max(each.resources.get(resource, 0.0) for each in labelled)
        if amount > most + ROUNDING:
            return ConfigError(
                f"{ask.prefix}{_setting_of(resource)}",
                _told(resource, amount),
                f"cannot place {name}: expected {_told(resource, most)} "
                f"{_NAMES.get(resource, resource)} at most, what the largest machine"
                f"{' with its labels' if ask.labels else ''} has",
            )
    return ConfigError(
        ask.prefix.rstrip("._"),
        _all_of(ask),
        f"cannot place {name}: expected what one machine of this Ray cluster has together",
    )


def _unlabelled(name: str, ask: Ask, machines: Sequence[Machine]) -> ConfigError:
    for label, wanted in ask.labels.items():
        if not any(fits_labels({label: wanted}, each.labels) for each in machines):
            return ConfigError(
                f"{ask.prefix}label_selector",
                {label: wanted},
                f"cannot place {name}: expected a label that a machine of this Ray cluster has: "
                f"{_values_of(label, machines)}",
            )
    return ConfigError(
        f"{ask.prefix}label_selector",
        dict(ask.labels),
        f"cannot place {name}: expected labels that one machine has together",
    )


def _filled(name: str, wanted: Placement, machines: Sequence[Machine]) -> ConfigError:
    """Machines that suit it are there, and the run's other actors fill them."""
    ask = wanted.asks[name]
    suitable = f"{sum(suits(ask, each) for each in machines)} of {len(machines)} machines suit it"
    if wanted.strategy is Strategy.strict_spread and ask.apart:
        return ConfigError(
            "ray.strategy",
            wanted.strategy.value,
            f"cannot place {name}: expected a machine for each node; {suitable}, and other nodes "
            "have them",
        )
    return ConfigError(
        ask.prefix.rstrip("._"),
        _all_of(ask),
        f"cannot place {name}: expected no more than this Ray cluster has in all; {suitable}, and "
        "other actors of the run fill them",
    )


def _all_of(ask: Ask) -> str:
    return ", ".join(
        f"{_setting_of(resource)}={_told(resource, amount)}"
        for resource, amount in ask.resources.items()
    )


def _setting_of(resource: str) -> str:
    return _SETTINGS.get(resource, f"resources.{resource}")


def _told(resource: str, amount: float) -> str:
    return f"{amount / GIB if resource == 'memory' else amount:.4g}"


def _values_of(label: str, machines: Sequence[Machine]) -> str:
    values = sorted({each.labels[label] for each in machines if label in each.labels})
    return f"{label} is {', '.join(values)}" if values else f"none has {label}"
