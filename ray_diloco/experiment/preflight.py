"""What the exchange of a run will cost, before it starts: commits, bytes and storage an hour.

An estimate from the settings, the model's size and the nodes' speeds; stragglers, rejected deltas
and repeated requests are not in it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from ray_diloco.cluster.settings import node_profiles
from ray_diloco.experiment.schema import Config, Role, TimeKind
from ray_diloco.hub.limits import master_share, node_share
from ray_diloco.timing.profile import NodeProfile
from ray_diloco.workload.models import estimate_bytes

HOUR = 3600.0
FLOAT32 = 4
BYTES_OF = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
LONGEST_INNER_LOOP = 1 << 20
"""Inner steps beyond which no larger number is proposed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Numbers of one hour of the run, all participants together; bytes are None for a model that
    cannot be sized. ``budget``: None where nobody counts commits. ``wanted``: commits that the
    nodes and the master would make without a budget.
    """

    deltas: float
    publications: float
    budget: int | None
    model_bytes: int | None
    up: float | None
    down: float | None

    @property
    def wanted(self) -> float:
        return self.deltas + self.publications

    @property
    def fits(self) -> bool:
        return self.budget is None or self.wanted <= self.budget


def forecast(config: Config) -> Forecast:
    """What an hour in the middle of the run brings."""
    model_bytes = estimate_bytes(config.model)
    numbers = None if model_bytes is None else model_bytes // BYTES_OF[config.model.dtype]
    delta_bytes = None if numbers is None else numbers * FLOAT32
    deltas = sum(_deltas(config, profile, delta_bytes or 0) for profile in _profiles(config))
    publications = min(deltas, HOUR / config.diloco.poll_interval)
    up = down = None
    if model_bytes is not None and numbers is not None and delta_bytes is not None:
        state = _state_bytes(config, numbers) / config.diloco.outer_state_every
        up = deltas * delta_bytes + publications * (model_bytes + state)
        down = deltas * delta_bytes + publications * model_bytes * config.cluster.nodes
    return Forecast(
        deltas=deltas,
        publications=publications,
        budget=config.hub.budget,
        model_bytes=model_bytes,
        up=up,
        down=down,
    )


def preflight(config: Config) -> list[str]:
    """The forecast, and what to change when it does not fit, as lines to print."""
    return expectations(config) + over_budget(config)


def expectations(config: Config) -> list[str]:
    """The forecast as lines to print."""
    if config.run.role is Role.single:
        return ["run.role=single exchanges nothing"]
    found = forecast(config)
    lines = [
        f"commits   about {found.wanted:.0f} per hour: {found.deltas:.0f} deltas of "
        f"{config.cluster.nodes} nodes, {found.publications:.0f} publications; "
        + _limit_of(config, found),
        *_byte_lines(config, found),
    ]
    if config.time.kind is TimeKind.wall and not config.time.emulate_profile:
        lines.append(
            "speeds    those of cluster.profiles, which time.emulate_profile=false does not keep"
        )
    return lines


def over_budget(config: Config) -> list[str]:
    """What to change, with numbers, when the run wants more commits than it may have."""
    if config.run.role is Role.single:
        return []
    found = forecast(config)
    if found.fits:
        return []
    nodes = config.cluster.nodes
    every = HOUR / node_share(found.budget or 1, nodes)
    return [
        f"about {found.wanted:.0f} commits per hour are wanted, "
        f"hub.commits_per_hour={found.budget} are allowed: boundaries will be skipped, so that "
        f"each node sends one delta in {every:.0f} s at most, and the master publishes once in "
        f"{HOUR / master_share(found.budget or 1, nodes):.0f} s. "
        f"Instead, {' or '.join(_proposals(config))} would do"
    ]


def _proposals(config: Config) -> list[str]:
    """Single settings that would make the run fit."""
    now, found = config.diloco.inner_steps, []
    steps = _smallest(lambda steps: forecast(_with_inner_steps(config, steps)).fits, now)
    if steps is not None:
        found.append(f"diloco.inner_steps={steps} (now {now})")
    nodes = config.cluster.nodes
    for fewer in range(nodes - 1, 0, -1):
        cluster = replace(config.cluster, nodes=fewer, node_ids=config.cluster.node_ids[:fewer])
        if forecast(replace(config, cluster=cluster)).fits:
            found.append(f"cluster.nodes={fewer} (now {nodes})")
            break
    return found or ["slower nodes"]


def _smallest(fits: Callable[[int], bool], above: int) -> int | None:
    """The smallest number above that fits, when larger ones fit all the better."""
    low, high = above, above * 2
    while not fits(high):
        low, high = high, high * 2
        if high > LONGEST_INNER_LOOP:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _with_inner_steps(config: Config, steps: int) -> Config:
    return replace(config, diloco=replace(config.diloco, inner_steps=steps))


def _profiles(config: Config) -> list[NodeProfile]:
    return [profile for _, profile in node_profiles(config.cluster)]


def _deltas(config: Config, profile: NodeProfile, delta_bytes: int) -> float:
    """Deltas per hour of one node: a boundary at which the last upload still runs is skipped."""
    boundary = config.diloco.inner_steps * profile.seconds_per_step
    upload = profile.link.transfer_time("up", delta_bytes) / 1e6
    return HOUR / (boundary * max(1, math.ceil(upload / boundary)))


def _state_bytes(config: Config, numbers: int) -> int:
    """Momentum, and a float32 copy where the model has another dtype."""
    return numbers * FLOAT32 * (1 if config.model.dtype == "float32" else 2)


def _limit_of(config: Config, found: Forecast) -> str:
    if found.budget is None:
        return f"hub={config.hub.kind.value} does not count them"
    return f"hub.commits_per_hour={found.budget}"


def _byte_lines(config: Config, found: Forecast) -> list[str]:
    if found.up is None or found.down is None or found.model_bytes is None:
        return ["bytes     unknown: the size of model=custom shows only when it is built"]
    commits = f"hub.squash_every={config.hub.squash_every}"
    kept = (
        "until the history is squashed (hub.squash_every)"
        if not config.hub.squash_every
        else f"until the history is squashed ({commits}, "
        f"about {_size(found.up * config.hub.squash_every / max(found.wanted, 1e-9))})"
    )
    return [
        f"model     {_size(found.model_bytes)}",
        f"bytes     {_size(found.up)} up, {_size(found.down)} down per hour",
        f"storage   grows by {_size(found.up)} per hour {kept}",
    ]


def _size(number: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"
