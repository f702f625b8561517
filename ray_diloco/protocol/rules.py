"""The choices of the outer rules, and which of them go together."""

from typing import TYPE_CHECKING

from ray_diloco.errors import ConfigError

if TYPE_CHECKING:
    from ray_diloco.protocol.settings import DilocoSettings

OUTER_BUFFERS = {"nesterov": 1, "sgd": 0, "adam": 2, "delayed_nesterov": 2, "buffered": 2}
"""The outer optimizers, and how many numbers each remembers per parameter."""
OUTER_NAMES = tuple(OUTER_BUFFERS)
BY_ARRIVAL = ("delayed_nesterov", "buffered")
"""The outer optimizers that take the deltas of a round one after the other."""
WEIGHTING_NAMES = ("equal", "tokens", "shard_size")
STALENESS_NAMES = ("constant", "poly", "hinge", "drop")
DIVIDE_NAMES = ("arrivals", "nodes")
AGGREGATION_NAMES = ("mean", "median", "trimmed_mean", "krum", "centered_clip", "norm_clip")
RULE_SETTINGS = (
    "outer",
    "outer_arrivals",
    "outer_c",
    "outer_beta2",
    "outer_eps",
    "weighting",
    "staleness",
    "staleness_exponent",
    "staleness_slope",
    "staleness_after",
    "divide",
    "aggregation",
    "trim_share",
    "byzantine",
    "clip_radius",
    "clip_iterations",
    "fragments",
    "fragment_mix",
)
"""The settings of all these rules, which a run keeps from its first round to its last."""
WEIGHABLE = ("mean", "norm_clip")
"""The aggregations in which one delta may count for more than another."""


def deltas_needed(settings: "DilocoSettings") -> int:
    """From how many deltas on a round is aggregated as the settings say; of fewer it takes the
    mean.
    """
    match settings.aggregation:
        case "mean":
            return 1
        case "krum":
            return 2 * settings.byzantine + 3
        case "norm_clip" if settings.clip_radius is not None:
            return 1
        case _:
            return 3


def check_rules(settings: "DilocoSettings") -> None:
    """ConfigError for the first setting, or combination, that cannot be used."""
    for name, choices in (
        ("outer", OUTER_NAMES),
        ("weighting", WEIGHTING_NAMES),
        ("staleness", STALENESS_NAMES),
        ("divide", DIVIDE_NAMES),
        ("aggregation", AGGREGATION_NAMES),
    ):
        value = getattr(settings, name)
        if value not in choices:
            raise ConfigError(f"diloco.{name}", value, f"expected one of {', '.join(choices)}")
    _check_amounts(settings)
    _check_outer(settings)
    _check_arrivals(settings)
    _check_staleness(settings)
    _check_aggregation(settings)


def check_fragments(settings: "DilocoSettings") -> None:
    """ConfigError for fragments that cannot be had, or not with what else is set."""
    count, alpha = settings.fragments, settings.fragment_mix
    if count < 1:
        raise ConfigError("diloco.fragments", count, "expected at least 1")
    if not 0 <= alpha <= 1 or (alpha and count == 1):
        raise ConfigError(
            "diloco.fragment_mix", alpha, "expected 0 to 1, and 0 with diloco.fragments=1"
        )
    if count == 1:
        return
    if settings.inner_steps % count:
        raise ConfigError(
            "diloco.fragments",
            count,
            f"expected a divisor of diloco.inner_steps={settings.inner_steps}: each of the "
            "fragments is sent once in so many steps, at equal distances",
        )
    _check_beside_fragments(settings)


def _check_beside_fragments(settings: "DilocoSettings") -> None:
    beside = f"with diloco.fragments={settings.fragments}"
    for name, expected, reason in (
        ("compat", False, "a plain peer takes whole deltas only"),
        ("install", "rebase", "at no time all is sent, so that others drop what is not"),
        ("max_relative_norm", None, "norms of different fragments say nothing of each other"),
    ):
        if getattr(settings, name) != expected:
            shown = str(expected).lower() if expected is not None else "null"
            value = getattr(settings, name)
            raise ConfigError(f"diloco.{name}", value, f"expected {shown} {beside}: {reason}")
    if settings.outer in BY_ARRIVAL or settings.outer == "adam":
        raise ConfigError(
            "diloco.outer",
            settings.outer,
            f"expected nesterov or sgd {beside}: the others count rounds or arrivals of whole "
            "models",
        )


def check_for_nodes(settings: "DilocoSettings", nodes: int) -> None:
    """ConfigError for rules that can never work with so many nodes."""
    needed = deltas_needed(settings)
    if needed > max(1, nodes):
        raise ConfigError(
            "diloco.aggregation",
            settings.aggregation,
            f"needs {needed} deltas in a round, but there are {nodes} nodes; expected mean, "
            f"or at least cluster.nodes={needed}",
        )
    _check_c(settings, settings.outer_arrivals or nodes)


def _check_amounts(settings: "DilocoSettings") -> None:
    limits = {
        "outer_c": (0.0, 1.0, "expected 0 up to 1/N"),
        "outer_beta2": (0.0, 1 - 1e-12, "expected 0 up to, not including, 1"),
        "staleness_exponent": (0.0, 1e9, "expected at least 0"),
        "staleness_slope": (0.0, 1e9, "expected at least 0"),
        "staleness_after": (0, 1e9, "expected at least 0"),
        "byzantine": (0, 1e9, "expected at least 0"),
        "clip_iterations": (1, 1e6, "expected at least 1"),
    }
    for name, (least, most, expected) in limits.items():
        if not least <= getattr(settings, name) <= most:
            raise ConfigError(f"diloco.{name}", getattr(settings, name), expected)
    positive = ("outer_arrivals", "outer_eps", "trim_share", "clip_radius")
    for name in positive:
        value = getattr(settings, name)
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"diloco.{name}", value, "expected a number above 0")
    if not settings.trim_share < 0.5:
        raise ConfigError("diloco.trim_share", settings.trim_share, "expected a number below 0.5")


def _check_outer(settings: "DilocoSettings") -> None:
    if settings.outer == "sgd" and settings.outer_momentum:
        raise ConfigError(
            "diloco.outer_momentum",
            settings.outer_momentum,
            "expected 0 with diloco.outer=sgd, which has no momentum (outer=sgd sets both)",
        )
    if settings.outer not in BY_ARRIVAL and settings.outer_arrivals is not None:
        raise ConfigError(
            "diloco.outer_arrivals",
            settings.outer_arrivals,
            f"expected null with diloco.outer={settings.outer}, which counts no arrivals",
        )
    if settings.outer != "delayed_nesterov" and settings.outer_c:
        raise ConfigError(
            "diloco.outer_c", settings.outer_c, "expected 0 without diloco.outer=delayed_nesterov"
        )
    if settings.outer_arrivals is not None:
        _check_c(settings, settings.outer_arrivals)


def _check_c(settings: "DilocoSettings", arrivals: int) -> None:
    if settings.outer_c * arrivals > 1 + 1e-12:
        raise ConfigError(
            "diloco.outer_c",
            settings.outer_c,
            f"expected 0 to 1/N, with N={arrivals} arrivals to a momentum update",
        )


def _check_arrivals(settings: "DilocoSettings") -> None:
    """What cannot be had from deltas that are taken one after the other."""
    if settings.outer not in BY_ARRIVAL:
        return
    one_by_one = f"with diloco.outer={settings.outer}, which takes deltas one by one"
    if settings.aggregation != "mean":
        raise ConfigError("diloco.aggregation", settings.aggregation, f"expected mean {one_by_one}")
    if settings.divide != "arrivals":
        raise ConfigError(
            "diloco.divide",
            settings.divide,
            f"expected arrivals {one_by_one} and divides by diloco.outer_arrivals",
        )
    if settings.outer == "delayed_nesterov" and settings.weighting != "equal":
        raise ConfigError(
            "diloco.weighting",
            settings.weighting,
            f"expected equal {one_by_one}: there is nothing to weigh them against",
        )


def _check_staleness(settings: "DilocoSettings") -> None:
    if settings.staleness == "drop" and settings.max_staleness is None:
        raise ConfigError(
            "diloco.max_staleness", None, "expected a number of outer steps with staleness=drop"
        )


def _check_aggregation(settings: "DilocoSettings") -> None:
    needed = deltas_needed(settings)
    if settings.max_deltas_per_round < needed:
        raise ConfigError(
            "diloco.max_deltas_per_round",
            settings.max_deltas_per_round,
            f"expected at least {needed}, which aggregation={settings.aggregation} needs",
        )
    if settings.aggregation in WEIGHABLE:
        return
    alike = f"with diloco.aggregation={settings.aggregation}, which takes all deltas alike"
    if settings.weighting != "equal":
        raise ConfigError("diloco.weighting", settings.weighting, f"expected equal {alike}")
    if settings.staleness not in ("constant", "drop"):
        raise ConfigError(
            "diloco.staleness", settings.staleness, f"expected constant or drop {alike}"
        )
