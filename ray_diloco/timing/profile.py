"""How fast a simulated machine and its link are: settings, their check, and the draws from them."""

import math
import random
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import NormalDist

from ray_diloco.errors import ConfigError
from ray_diloco.protocol.clock import Micros, micros
from ray_diloco.timing.shared_links import Flow

JITTERS = ("constant", "normal", "lognormal", "heavy_tail")
FASTEST = 0.1
"""A normal draw is never below this part of the mean: no step takes no time."""
SLOWEST = 1000.0
"""A heavy-tailed draw is never above this multiple of the mean: a run comes to an end."""

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProfile:
    """A link to the hub. A ``*_mbps`` of None does not limit."""

    up_mbps: float | None = None
    """Towards the hub, in megabits (10^6 bits) per second."""
    down_mbps: float | None = None
    """From the hub, in megabits per second."""
    latency_ms: float = 0.0
    """Paid once by every transfer, in milliseconds."""
    shared_up: dict[str, float] = field(default_factory=dict[str, float])
    """Links on the way to the hub that others use too: name and megabits per second."""
    shared_down: dict[str, float] = field(default_factory=dict[str, float])
    """The same from the hub."""

    def flow(self, direction: str, size: int) -> Flow | None:
        """What goes over shared links after `latency`; None when there are none on the way."""
        up = direction == "up"
        shared, own = (self.shared_up, self.up_mbps) if up else (self.shared_down, self.down_mbps)
        if not shared:
            return None
        links = tuple((f"{name} {direction}", mbps / 8) for name, mbps in sorted(shared.items()))
        return Flow(size, None if own is None else own / 8, links)

    @property
    def latency(self) -> Micros:
        return Micros(round(self.latency_ms * 1000))

    def transfer_time(self, direction: str, size: int) -> Micros:
        """Latency plus bytes over bandwidth, rounded to the nearest microsecond."""
        mbps = self.up_mbps if direction == "up" else self.down_mbps
        return Micros(round(self.latency_ms * 1000 + (size * 8 / mbps if mbps else 0.0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProfile:
    """A simulated machine: group ``cluster.nodes.<id>``."""

    seconds_per_step: float = 1.0
    """Mean duration of a local step, gradient accumulation included."""
    jitter: str = "constant"
    """How durations scatter: constant, normal, lognormal or heavy_tail. The mean stays."""
    jitter_parameter: float = 0.0
    """normal: standard deviation as a part of the mean; lognormal: sigma of the logarithm;
    heavy_tail: exponent of the Pareto tail, above 1, smaller is wilder (1.5 is rough).
    """
    up_mbps: float | None = None
    """Upload bandwidth in megabits per second; null: no limit."""
    down_mbps: float | None = None
    """Download bandwidth in megabits per second; null: no limit."""
    latency_ms: float = 0.0
    """Paid once by every transfer, in milliseconds."""
    shared_up: dict[str, float] = field(default_factory=dict[str, float])
    """Links towards the hub that it shares with every node that names them: name and megabits per
    second. Simulated in virtual time only, like all that follows."""
    shared_down: dict[str, float] = field(default_factory=dict[str, float])
    """The same from the hub."""
    join_at: float = 0.0
    """Seconds of the run's time at which it first takes part."""
    leave_at: float | None = None
    """Seconds at which it sends what it has and ends; null: with the run."""
    crash_at: float | None = None
    """Seconds at which it dies without a word; null: never."""
    recover_after: float | None = None
    """Seconds from ``crash_at`` until it starts again; null: it never does."""
    away: list[list[float]] = field(default_factory=list[list[float]])
    """Further stretches [from, until] of seconds in which it is dead; until .inf: for good."""

    @property
    def link(self) -> LinkProfile:
        """The link's part."""
        return LinkProfile(
            up_mbps=self.up_mbps,
            down_mbps=self.down_mbps,
            latency_ms=self.latency_ms,
            shared_up=self.shared_up,
            shared_down=self.shared_down,
        )

    def check(self, node_id: str) -> None:
        """ConfigError for the first setting that cannot be used, as ``cluster.nodes.<id>.<field>``.

        ``node_id`` only names the setting.
        """
        for name, good, expected in (
            ("seconds_per_step", _positive(self.seconds_per_step), "a finite number above 0"),
            ("jitter", self.jitter in JITTERS, f"one of {', '.join(JITTERS)}"),
            ("up_mbps", self.up_mbps is None or _positive(self.up_mbps), "above 0, or null"),
            ("down_mbps", self.down_mbps is None or _positive(self.down_mbps), "above 0, or null"),
            ("latency_ms", 0 <= self.latency_ms < math.inf, "a finite number from 0"),
            ("jitter_parameter", *self._parameter_fits()),
            ("shared_up", all(map(_positive, self.shared_up.values())), "numbers above 0"),
            ("shared_down", all(map(_positive, self.shared_down.values())), "numbers above 0"),
            ("join_at", 0 <= self.join_at < math.inf, "a finite number from 0"),
            ("leave_at", self._comes_later(self.leave_at), "more than join_at, or null"),
            ("crash_at", self._comes_later(self.crash_at), "more than join_at, or null"),
            ("recover_after", *self._recovery_fits()),
            ("away", self._away_fits(), "[from, until] in order, later than join_at, apart"),
        ):
            if not good:
                raise ConfigError(f"cluster.nodes.{node_id}.{name}", getattr(self, name), expected)

    def _comes_later(self, seconds: float | None) -> bool:
        return seconds is None or self.join_at < seconds < math.inf

    def _recovery_fits(self) -> tuple[bool, str]:
        if self.recover_after is None:
            return True, ""
        good = self.crash_at is not None and _positive(self.recover_after)
        return good, "a finite number above 0, with crash_at, or null"

    def _away_fits(self) -> bool:
        ends = [self.join_at]
        for stretch in self.away:
            if len(stretch) != 2:
                return False
            ends += stretch
        return all(before < after for before, after in pairwise(ends))

    def _parameter_fits(self) -> tuple[bool, str]:
        match self.jitter:
            case "heavy_tail":
                good = 1 < self.jitter_parameter < math.inf
                return good, "above 1 with jitter=heavy_tail, or its mean is not finite"
            case "normal" | "lognormal":
                good = 0 <= self.jitter_parameter < math.inf
                return good, f"a finite number from 0 with jitter={self.jitter}"
            case _:
                return self.jitter_parameter == 0, "0 with jitter=constant"


def draw_step(profile: NodeProfile, rng: random.Random) -> Micros:
    """The duration of one local step, at least 1 microsecond: the mean times a drawn factor of
    mean 1. A constant profile draws nothing.
    """
    return Micros(max(1, micros(profile.seconds_per_step * _factor(profile, rng))))


def _factor(profile: NodeProfile, rng: random.Random) -> float:
    match profile.jitter:
        case "normal":
            return max(FASTEST, 1.0 + profile.jitter_parameter * _normal(rng))
        case "lognormal":
            sigma = profile.jitter_parameter
            return math.exp(sigma * _normal(rng) - sigma * sigma / 2)
        case "heavy_tail":
            alpha = profile.jitter_parameter
            return min(SLOWEST, (alpha - 1) / alpha * _uniform(rng) ** (-1 / alpha))
        case _:
            return 1.0


def _uniform(rng: random.Random) -> float:
    """In (0, 1), both ends left out."""
    return (rng.getrandbits(52) + 0.5) / 2**52


def _normal(rng: random.Random) -> float:
    return _NORMAL.inv_cdf(_uniform(rng))


def _positive(number: float) -> bool:
    return 0 < number < math.inf
