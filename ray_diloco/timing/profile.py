"""How fast a simulated machine and its link are: settings, their check, and the draws from them."""

import math
import random
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import NormalDist

from ray_diloco.errors import ConfigError
from ray_diloco.protocol.clock import Micros, micros
from ray_diloco.protocol.settings import DURATION, LEAST_MBPS, LONGEST_SECONDS
from ray_diloco.timing.shared_links import Flow

JITTERS = ("constant", "normal", "lognormal", "heavy_tail")
FASTEST = 0.1
"""A normal draw is never below this part of the mean: no step takes no time."""
SLOWEST = 1000.0
"""A heavy-tailed draw is never above this multiple of the mean: a run comes to an end."""

RATE = f"a finite rate from {LEAST_MBPS:g}"
LATER = f"more than join_at, {LONGEST_SECONDS:g} at most"
GPUS = "a part of 1, or a whole number"
ASKS = ("num_cpus", "num_gpus", "memory_gb", "resources", "label_selector")
"""Fields of a profile that say where a machine is found, not how fast it is."""
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
    delta_factor: float = 1.0
    """What it sends is its delta times this, such as -5 for a machine that is broken or means harm;
    itself it goes on as if it had sent the truth.
    """
    silent_share: float = 0.0
    """In this share of its boundaries, by lot, it sends nothing; what it learned goes out later."""
    num_cpus: float = 0.0
    """CPUs that its actor asks Ray for. Like all that is asked for it counts with `engine=ray` on a
    Ray that is joined (`ray.address`)."""
    num_gpus: float | None = None
    """GPUs likewise, also a part of one; null: 1 with `run.device=cuda`, else 0."""
    memory_gb: float = 0.0
    """Memory likewise, in GiB."""
    resources: dict[str, float] = field(default_factory=dict[str, float])
    """Custom resources likewise, by name."""
    label_selector: dict[str, str] = field(default_factory=dict[str, str])
    """Labels that its machine must have: ``a``, ``!a``, ``in(a,b)`` or ``!in(a,b)`` by name."""
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
            ("seconds_per_step", *self._speed_fits()),
            ("delta_factor", _usable(self.delta_factor), "a finite number other than 0"),
            ("silent_share", 0 <= self.silent_share < 1, "0 up to, not including, 1"),
            ("jitter", self.jitter in JITTERS, f"one of {', '.join(JITTERS)}"),
            ("up_mbps", self.up_mbps is None or fits_rate(self.up_mbps), f"{RATE}, or null"),
            ("down_mbps", self.down_mbps is None or fits_rate(self.down_mbps), f"{RATE}, or null"),
            ("latency_ms", 0 <= self.latency_ms <= 1e3 * LONGEST_SECONDS, "a number from 0"),
            ("jitter_parameter", *self._parameter_fits()),
            ("num_cpus", 0 <= self.num_cpus < math.inf, "a finite number from 0"),
            ("num_gpus", self.num_gpus is None or fits_gpus(self.num_gpus), f"{GPUS}, or null"),
            ("memory_gb", 0 <= self.memory_gb < math.inf, "a finite number from 0"),
            ("resources", all(map(_positive, self.resources.values())), "numbers above 0"),
            ("shared_up", all(map(fits_rate, self.shared_up.values())), RATE),
            ("shared_down", all(map(fits_rate, self.shared_down.values())), RATE),
            ("join_at", 0 <= self.join_at <= LONGEST_SECONDS, f"0 to {LONGEST_SECONDS:g}"),
            ("leave_at", self._comes_later(self.leave_at), f"{LATER}, or null"),
            ("crash_at", self._comes_later(self.crash_at), f"{LATER}, or null"),
            ("recover_after", *self._recovery_fits()),
            ("away", self._away_fits(), f"[from, until] in order, apart, each {LATER}"),
            ("crash_at", self._crash_happens(), "a moment when it is there: not away, not left"),
            ("recover_after", self._back_in_time(), "to be back before it is away again"),
        ):
            if not good:
                raise ConfigError(
                    f"cluster.nodes.{node_id}.{name}", getattr(self, name), f"expected {expected}"
                )

    def _speed_fits(self) -> tuple[bool, str]:
        good = 0 < self.seconds_per_step <= LONGEST_SECONDS
        return good, DURATION

    def _comes_later(self, seconds: float | None) -> bool:
        return seconds is None or self.join_at < seconds <= LONGEST_SECONDS

    def _recovery_fits(self) -> tuple[bool, str]:
        if self.recover_after is None:
            return True, ""
        good = self.crash_at is not None and 0 < self.recover_after <= LONGEST_SECONDS
        return good, f"above 0, {LONGEST_SECONDS:g} at most, with crash_at, or null"

    def _away_fits(self) -> bool:
        ends = [self.join_at]
        for stretch in self.away:
            if len(stretch) != 2:
                return False
            ends += stretch
        if any(LONGEST_SECONDS < end < math.inf for end in ends):
            return False
        return all(before < after for before, after in pairwise(ends))

    def _crash_happens(self) -> bool:
        """Nothing can die that is not there."""
        if self.crash_at is None:
            return True
        left = self.leave_at is not None and self.leave_at <= self.crash_at
        return not left and not any(at <= self.crash_at <= until for at, until in self.away)

    def _back_in_time(self) -> bool:
        if self.crash_at is None:
            return True
        after = math.inf if self.recover_after is None else self.recover_after
        back = self.crash_at + after
        return not any(self.crash_at < at <= back for at, _ in self.away)

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


def fits_rate(mbps: float) -> bool:
    """What a transfer of any size comes to the end over."""
    return LEAST_MBPS <= mbps < math.inf


def fits_gpus(number: float) -> bool:
    """Ray deals parts of one GPU, or whole ones."""
    return 0 <= number < math.inf and (number <= 1 or number == int(number))


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


def _usable(factor: float) -> bool:
    return math.isfinite(factor) and factor != 0


def _positive(number: float) -> bool:
    return 0 < number < math.inf
