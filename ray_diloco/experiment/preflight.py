"""What the exchange of a run will cost, before it starts: commits, bytes and storage an hour.

An estimate from the settings, the model's size and the nodes' speeds; stragglers, rejected deltas
and repeated requests are not in it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from ray_diloco.cluster.inner_schedule import boundary_steps_of
from ray_diloco.cluster.settings import node_profiles
from ray_diloco.experiment.delta_size import delta_bytes
from ray_diloco.experiment.schema import Config, Role, TimeKind
from ray_diloco.hub.limits import master_share, node_share
from ray_diloco.protocol.fragments import gap
from ray_diloco.protocol.rules import OUTER_BUFFERS
from ray_diloco.timing.profile import NodeProfile
from ray_diloco.workload.outline import FLOAT32, estimate_bytes, outline

HOUR = 3600.0
NOTHING = "run.role=single exchanges nothing"
AT_ONCE = 2
"""Deltas that a node may send without waiting for its turn; see `hub.limits.Share`."""
LONGEST_INNER_LOOP = 1 << 20
"""Inner steps beyond which no larger number is proposed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Numbers of one hour of the run, all participants together. ``budget``: None where nobody
    counts commits. ``wanted``: commits that the nodes and the master would make without a budget.
    """

    deltas: float
    publications: float
    budget: int | None
    model_bytes: int
    up: float
    down: float

    @property
    def wanted(self) -> float:
        return self.deltas + self.publications

    @property
    def fits(self) -> bool:
        return self.budget is None or self.wanted <= self.budget


def forecast(config: Config) -> Forecast:
    """What an hour in the middle of the run brings."""
    model_bytes = estimate_bytes(config.model)
    size = delta_bytes(config)
    steps = boundary_steps_of(config.diloco, config.cluster)
    deltas = sum(
        _deltas(profile, steps[node_id], size) for node_id, profile in node_profiles(config.cluster)
    )
    publications = min(deltas, HOUR / config.diloco.poll_interval)
    changed = _changed_bytes(config, model_bytes, deltas, publications)
    state = _state_bytes(config) / config.diloco.outer_state_every
    cut = config.diloco.fragments > 1
    return Forecast(
        deltas=deltas,
        publications=publications,
        budget=config.hub.budget,
        model_bytes=model_bytes,
        up=deltas * size + publications * (model_bytes + state + (changed if cut else 0)),
        down=deltas * size + publications * changed * config.cluster.nodes,
    )


def _changed_bytes(config: Config, model_bytes: int, deltas: float, publications: float) -> float:
    """What a node fetches of a global: the fragments that its round had deltas of, at most one
    for each delta.
    """
    fragments = config.diloco.fragments
    return model_bytes * min(fragments, max(1.0, deltas / publications)) / fragments


def preflight(config: Config) -> list[str]:
    """The forecast by the cluster's profiles, and what to change when it does not fit, as lines to
    print.
    """
    if config.run.role is Role.single:
        return [NOTHING]
    lines = _hourly(config, forecast(config))
    if not _speeds_are_known(config):
        lines.append(
            "speeds    those of cluster.profiles, which time.emulate_profile=false does not keep; "
            "ray-diloco-calibrate measures a machine's"
        )
    return lines + _too_many(config)


def expectations(config: Config) -> list[str]:
    """What is known of the exchange when a run starts, as lines to print."""
    if config.run.role is Role.single:
        return [NOTHING]
    found = forecast(config)
    return (_hourly if _speeds_are_known(config) else _per_commit)(config, found)


def _hourly(config: Config, found: Forecast) -> list[str]:
    return [
        f"commits   about {found.wanted:.0f} per hour: {found.deltas:.0f} deltas of "
        f"{config.cluster.nodes} nodes, {found.publications:.0f} publications; "
        + _limit_of(config, found),
        *_byte_lines(config, found),
    ]


def _speeds_are_known(config: Config) -> bool:
    """Real machines keep to no profile."""
    return config.time.kind is not TimeKind.wall or config.time.emulate_profile


def _per_commit(config: Config, found: Forecast) -> list[str]:
    """What each commit costs, and how often there may be one, when nobody knows how fast steps
    are.
    """
    commits = f"one for each delta and each publication; {_limit_of(config, found)}"
    if found.budget is not None:
        commits += f", {_pace(config, found.budget)}; a boundary that comes sooner is skipped"
    published = found.model_bytes + _state_bytes(config)
    return [
        f"commits   {commits}",
        f"model     {_size(found.model_bytes)}",
        f"bytes     {_size(delta_bytes(config))} for a delta, {_size(published)} for a publication",
    ]


def _pace(config: Config, budget: int) -> str:
    nodes = config.cluster.nodes
    every, publishes = HOUR / node_share(budget, nodes), HOUR / master_share(budget, nodes)
    return (
        f"so that each node sends one delta in {_seconds(every)} at most, and the master publishes "
        f"once in {_seconds(publishes)}"
    )


def _seconds(value: float) -> str:
    return f"{value:.2g} s" if value < 10 else f"{value:.0f} s"


def over_budget(config: Config) -> list[str]:
    """What to change, with numbers, when the run wants more commits than it may have; nothing when
    nobody knows how fast steps are.
    """
    if config.run.role is Role.single or not _speeds_are_known(config):
        return []
    return _too_many(config)


def _too_many(config: Config) -> list[str]:
    found = forecast(config)
    if found.budget is None or found.fits or _boundaries(config) <= AT_ONCE:
        return []
    return [
        f"about {found.wanted:.0f} commits per hour are wanted, "
        f"hub.commits_per_hour={found.budget} are allowed: boundaries will be skipped, "
        f"{_pace(config, found.budget)}{_turns(config, found.budget)}. "
        f"Instead, {' or '.join(_proposals(config))} would do"
    ]


def _turns(config: Config, budget: int) -> str:
    """How few of a short run's boundaries have their turn; nothing when its length is not known."""
    boundaries = _boundaries(config)
    if boundaries == math.inf or config.run.max_steps is None:
        return ""
    least = min(profile.seconds_per_step for _, profile in node_profiles(config.cluster))
    hours = config.run.max_steps * least / HOUR
    sent = min(boundaries, AT_ONCE + int(hours * node_share(budget, config.cluster.nodes)))
    return (
        f"; the fastest node sends about {sent} deltas in this run, at {boundaries:.0f} boundaries"
    )


def _boundaries(config: Config) -> float:
    """Of each node in the whole run, at most."""
    steps = config.run.max_steps
    apart = gap(config.diloco.inner_steps, config.diloco.fragments)
    return math.inf if steps is None else math.ceil(steps / apart)


def _proposals(config: Config) -> list[str]:
    """Single settings that would make the run fit."""
    now, found = config.diloco.inner_steps, []
    steps = _smallest(lambda steps: forecast(_with_inner_steps(config, steps)).fits, now)
    if steps is not None and steps < (config.run.max_steps or math.inf):
        found.append(f"diloco.inner_steps={steps} (now {now})")
    nodes = config.cluster.nodes
    for fewer in range(nodes - 1, 0, -1):
        cluster = replace(config.cluster, nodes=fewer, node_ids=config.cluster.node_ids[:fewer])
        if forecast(replace(config, cluster=cluster)).fits:
            found.append(f"cluster.nodes={fewer} (now {nodes})")
            break
    return found or ["a hub of your own, with a larger hub.commits_per_hour,"]


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


def _deltas(profile: NodeProfile, apart: int, delta_bytes: int) -> float:
    """Deltas per hour of one node: a boundary at which the last upload still runs is skipped.
    ``apart``: local steps from one boundary to the next.
    """
    boundary = apart * profile.seconds_per_step
    upload = profile.link.transfer_time("up", delta_bytes) / 1e6
    return HOUR / (boundary * max(1, math.ceil(upload / boundary)))


def _state_bytes(config: Config) -> int:
    """What the outer optimizer remembers, and a float32 copy of what the model has in 16 bits."""
    sizes = outline(config.model).sizes
    return sizes.working_bytes * OUTER_BUFFERS[config.diloco.outer] + sizes.halves * FLOAT32


def _limit_of(config: Config, found: Forecast) -> str:
    if found.budget is None:
        return f"hub={config.hub.kind.value} does not count them"
    return f"hub.commits_per_hour={found.budget}"


def _byte_lines(config: Config, found: Forecast) -> list[str]:
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
