"""The numbers of a whole run from those of its sessions: what result.json holds."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ray_diloco.experiment.history import Session
from ray_diloco.experiment.killed import TRAFFIC
from ray_diloco.experiment.lives import CrashLosses
from ray_diloco.experiment.session import OF_INCARNATION, OF_SESSION, finite
from ray_diloco.protocol.clock import MICROS_PER_SECOND
from ray_diloco.protocol.ranges import NO_STEPS, StepRanges
from ray_diloco.protocol.run import Event

_RANGES = ("dropped", "unsent", "unresolved")
_LAST = (
    *("status", "error", "failures", "range_sum", "outer_steps", "tokens_merged"),
    *("model_sha256", "stop_reason", "trace_hash", "overrides", "versions"),
)
_SUMS = (*TRAFFIC, "wall_seconds", "wall_start_seconds")
_COUNTS = ("deltas_merged", "conflicts", "fallback_rounds")
_REFUSAL = ("node", "local_step", "path", "covers", "reason")


def whole_run(
    sessions: Sequence[Session],
    *,
    evaluations: Sequence[Event],
    rejections: Sequence[Event],
    crash_losses: CrashLosses,
) -> dict[str, Any]:
    """``sessions``: all of them in order; of a killed one only what `killed` can tell.
    ``evaluations``, ``rejections``: the events of all of them. ``crash_losses``: what was gone
    with machines.
    """
    last = sessions[-1]
    told = [each for each in sessions if each["status"] != "killed"]
    nodes = _nodes(sessions)
    sums = {name: sum(each[name] for each in sessions) for name in _SUMS}
    seconds = last["ended_seconds"]
    refused = _refusals(rejections)
    return {
        **{name: last[name] for name in _LAST},
        "crashes": _added([each["crashes"] for each in told]),
        "restarts": _joined([each.get("restarts", {}) for each in sessions]),
        **_losses(evaluations, last["outer_steps"]),
        "diverged": _diverged(evaluations, nodes),
        "tokens": _tokens(sessions),
        "run_seconds": seconds,
        **sums,
        "commits_per_hour": sums["commits"] * 3600 / seconds if seconds else None,
        **{name: _sum([each.get(name) for each in sessions]) for name in _COUNTS},
        "staleness": _staleness(sessions),
        "rejected_deltas": len(refused) or sum(len(each["rejected"]) for each in nodes.values()),
        "rejected": refused,
        "evaluations": [_evaluation(each) for each in evaluations],
        "dropped_local_steps": _steps(nodes, "dropped") + sum(crash_losses.lost.values()),
        "crash_losses": crash_losses.lost,
        "trained_again": crash_losses.trained_again,
        "unsent_local_steps": _steps(nodes, "unsent"),
        "unresolved_local_steps": _steps(nodes, "unresolved"),
        "skipped_boundaries": sum(each["skipped_boundaries"] for each in nodes.values()),
        "overflows": sum(each["overflows"] for each in nodes.values()),
        "nodes": nodes,
        "sessions": list(sessions),
    }


def told_ranges(sessions: Sequence[Session]) -> dict[tuple[str, str], StepRanges]:
    """By node id and nonce, local steps that the last report of an incarnation tells of as not
    merged.
    """
    return {
        (node_id, numbers["nonce"]): _union([numbers[name] for name in _RANGES])
        for session in sessions
        for node_id, numbers in _reported(session)
    }


# -- nodes -----------------------------------------------------------------------------------------


def _nodes(sessions: Sequence[Session]) -> dict[str, dict[str, Any]]:
    parts: dict[str, list[dict[str, Any]]] = {}
    for session in sessions:
        for node_id, numbers in _reported(session):
            parts.setdefault(node_id, []).append(numbers)
    nodes = {node_id: _node(parts[node_id]) for node_id in sorted(parts)}
    for node_id, counts in [*_cut_short(sessions), *_traffic_of_killed(sessions)]:
        if node_id in nodes:
            for name, count in counts.items():
                nodes[node_id][name] += count
    return nodes


def _reported(session: Session) -> Iterable[tuple[str, dict[str, Any]]]:
    """Nodes that left a report of the session."""
    return session["nodes"].items() if session["status"] != "killed" else ()


def _traffic_of_killed(sessions: Sequence[Session]) -> Iterator[tuple[str, Mapping[str, int]]]:
    for session in sessions:
        if session["status"] == "killed":
            yield from session["nodes"].items()


def _untold(session: Session) -> Iterator[tuple[str, dict[str, Any]]]:
    """Nodes that left no report of the session, and what is known of each all the same."""
    yield from session.get("unreported", {}).items()
    for life in session.get("lives", ()):
        yield life["node_id"], life


def _cut_short(sessions: Sequence[Session]) -> Iterator[tuple[str, Counter[str]]]:
    """What incarnations did after the last report that counts it, or without ever leaving one."""
    lives: dict[tuple[str, str], Counter[str]] = {}
    for session in sessions:
        for node_id, numbers in _reported(session):
            lives.pop((node_id, numbers["nonce"]), None)
        for node_id, life in _untold(session):
            counts = lives.setdefault((node_id, life["nonce"]), Counter())
            counts["local_steps"] += life.get("local_steps", 0)
            counts["tokens"] += life["tokens"] - life.get("tokens_before", 0)
            counts["deltas_landed"] += life.get("deltas_landed", 0)
    for (node_id, _), counts in lives.items():
        yield node_id, counts


def _node(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One node from its sessions. Counts of one nonce go on from session to session, so that its
    last word counts; a later nonce begins anew.
    """
    last = parts[-1]
    lives = list({each["nonce"]: each for each in parts}.values())
    spent = {name: sum(each[name] for each in parts) for name in OF_SESSION}
    compute, total = spent.pop("compute_seconds"), spent.pop("total_seconds")
    return {
        **{name: sum(each[name] for each in lives) for name in OF_INCARNATION},
        **spent,
        "train_loss": _last_known(parts, "train_loss"),
        "diverged": last["diverged"],
        "utilisation": compute / total if total else None,
        **{name: str(_union([each[name] for each in lives])) for name in _RANGES},
        "rejected": {steps: why for each in lives for steps, why in each["rejected"].items()},
        "stop_reason": last["stop_reason"],
        "data_note": _last_known(parts, "data_note"),
    }


def _tokens(sessions: Sequence[Session]) -> int:
    """Of all nodes; of one that left no report, what is known all the same. The counts of one
    incarnation go on from session to session.
    """
    by_life: dict[tuple[str, str], int] = {}
    for session in sessions:
        for node_id, life in [*_reported(session), *_untold(session)]:
            by_life[node_id, life["nonce"]] = life["tokens"]
    return sum(by_life.values())


def _last_known(parts: Sequence[dict[str, Any]], name: str) -> Any:
    return next((each[name] for each in reversed(parts) if each[name] is not None), None)


def _union(texts: Sequence[str]) -> StepRanges:
    steps = NO_STEPS
    for text in texts:
        steps = steps.union(StepRanges.parse(text))
    return steps


def _steps(nodes: Mapping[str, dict[str, Any]], name: str) -> int:
    return sum(len(StepRanges.parse(each[name])) for each in nodes.values())


# -- the master ------------------------------------------------------------------------------------


def _losses(evaluations: Sequence[Event], outer_steps: int) -> dict[str, float | None]:
    """Held-out, in nats per token, of the first and of the final model; None when it was not
    evaluated, or is not finite.
    """
    first = next((each for each in evaluations if each["outer_step"] == 0), None)
    final = next(
        (each for each in reversed(evaluations) if each["outer_step"] == outer_steps), None
    )
    if final is first and outer_steps == 0 and first is not None and not _by_master(first):
        final = None  # who trains alone has evaluated only the beginning
    return {
        "eval_loss": None if final is None else finite(final["loss"]),
        "initial_eval_loss": None if first is None else finite(first["loss"]),
    }


def _diverged(evaluations: Sequence[Event], nodes: Mapping[str, dict[str, Any]]) -> bool:
    """The loss of the last global that was evaluated, or of a node's training, is no number."""
    of_global = bool(evaluations) and finite(evaluations[-1]["loss"]) is None
    return of_global or any(each["diverged"] for each in nodes.values())


def _by_master(evaluation: Event) -> bool:
    return str(evaluation["participant"]).endswith("/master")


def _evaluation(event: Event) -> dict[str, Any]:
    return {
        "outer_step": event["outer_step"],
        "loss": finite(event["loss"]),
        "tokens_total": event["tokens_total"],
        "at_seconds": event.get("published_at", event["at"]) / MICROS_PER_SECOND,
    }


def _refusals(rejections: Sequence[Event]) -> list[dict[str, Any]]:
    """By the master, each once: a delta that was refused when a session was killed is refused again
    in the next one.
    """
    found: list[dict[str, Any]] = []
    for event in rejections:
        if "path" not in event:
            continue  # by a node that heard of it
        told = {name: event[name] for name in _REFUSAL}
        if told not in found:
            found.append(told)
    return found


def _staleness(sessions: Sequence[Session]) -> dict[str, int] | None:
    counts = [each["staleness"] for each in sessions if each["staleness"] is not None]
    if not counts:
        return None
    total = _added(counts)
    return {age: total[age] for age in sorted(total, key=int)}


def _added(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(sorted(total.items()))


def _joined(lists: Sequence[Mapping[str, Sequence[str]]]) -> dict[str, list[str]]:
    names = sorted({name for each in lists for name in each})
    return {name: [one for each in lists for one in each.get(name, ())] for name in names}


def _sum(values: Sequence[int | None]) -> int | None:
    """Of what is known; None when nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
