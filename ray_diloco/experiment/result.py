"""What a run comes to: the numbers of result.json from the reports of all who took part."""

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ray_diloco.cluster.engine import Ending, View
from ray_diloco.experiment.range_sum import check_range_sum
from ray_diloco.experiment.schema import Config
from ray_diloco.protocol.clock import MICROS_PER_SECOND
from ray_diloco.protocol.ranges import StepRanges
from ray_diloco.protocol.run import MasterReport, NodeReport, RunIdentity

_PACKAGES = ("ray-diloco", "torch", "ray", "huggingface_hub", "safetensors", "hydra-core", "numpy")
_SUMS = ("bytes_up", "bytes_down", "requests", "commits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The end of a run. ``numbers`` is what result.json holds; ``status`` is done, stopped (asked
    to end early) or failed.
    """

    run_dir: Path
    status: str
    numbers: dict[str, Any]

    @property
    def eval_loss(self) -> float | None:
        """Held-out loss of the final model, in nats per token; None when it was not evaluated."""
        return self.numbers["eval_loss"]

    @property
    def exit_code(self) -> int:
        """For the command line."""
        return {"done": 0, "stopped": 130}.get(self.status, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """Held-out losses in nats per token, of the first and of the final model."""

    initial: float | None = None
    final: float | None = None


def losses_of(master: MasterReport | None) -> Losses:
    """From the master's evaluations; None where the first or the final global has none."""
    by_step = {each.outer_step: each.loss for each in master.evaluations} if master else {}
    return Losses(initial=by_step.get(0), final=by_step.get(master.outer_steps if master else 0))


def summarise(
    config: Config,
    identity: RunIdentity,
    *,
    ending: Ending,
    last: View,
    losses: Losses,
    stopped: bool,
) -> dict[str, Any]:
    """All numbers of result.json that do not depend on where and when it ran."""
    nodes, master = ending.nodes, ending.master
    seconds = _run_seconds(last)
    sums = {name: sum(getattr(each, name) for each in _all(ending)) for name in _SUMS}
    verdict = _range_sum(ending)
    return {
        "status": _status(ending, verdict, stopped=stopped),
        "failures": ending.failures,
        "crashes": ending.crashes,
        "range_sum": verdict,
        "run_id": identity.run_id,
        "config_hash": identity.config_hash,
        "role": config.run.role.value,
        "seed": identity.seed,
        "eval_loss": losses.final,
        "initial_eval_loss": losses.initial,
        "tokens": _tokens(ending, last),
        "run_seconds": seconds,
        **sums,
        "commits_per_hour": sums["commits"] * 3600 / seconds if seconds else None,
        **_exchange(master, last),
        **_losses_of_work(nodes),
        "nodes": {node.node_id: _node(node) for node in nodes},
    }


def environment() -> dict[str, Any]:
    """Versions of what the numbers may depend on."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        **{name: found for name in _PACKAGES if (found := _version(name)) is not None},
    }


def _all(ending: Ending) -> tuple[NodeReport | MasterReport, ...]:
    return (*ending.nodes, *([ending.master] if ending.master else []))


def _status(ending: Ending, verdict: str | list[str], *, stopped: bool) -> str:
    if ending.failures or isinstance(verdict, list):
        return "failed"
    return "stopped" if stopped else "done"


def _range_sum(ending: Ending) -> str | list[str]:
    """The word ok, why it was not checked, or the violations."""
    if ending.master is None:
        return "unchecked: no master ran here, or it left no report"
    violations = check_range_sum(ending.nodes, ending.master)
    silent = sorted(name for name in ending.failures if "/" not in name)
    if silent and not violations:
        return f"unchecked: no report of {', '.join(silent)}; ok for the others"
    return violations or "ok"


def _tokens(ending: Ending, last: View) -> int:
    """Of all nodes; of one that left no report, what it said of itself last."""
    reported = {node.node_id for node in ending.nodes}
    return sum(node.tokens for node in ending.nodes) + sum(
        status.tokens for status in last.nodes if status.node_id not in reported
    )


def _exchange(master: MasterReport | None, last: View) -> dict[str, Any]:
    """What came of the rounds; of a worker alone, what it saw of them."""
    if master is None:
        seen = max((node.base_outer_step for node in last.nodes), default=-1)
        return {"outer_steps": max(seen, 0), "rejected_deltas": 0}
    return {
        "outer_steps": master.outer_steps,
        "deltas_merged": master.deltas_merged,
        "tokens_merged": master.tokens_total,
        "rejected_deltas": len(master.rejected),
        "rejected": master.rejected,
        "staleness": {str(age): master.staleness[age] for age in sorted(master.staleness)},
        "conflicts": master.conflicts,
        "evaluations": [
            {
                "outer_step": each.outer_step,
                "loss": each.loss,
                "tokens_total": each.tokens_total,
                "at_seconds": each.at / MICROS_PER_SECOND,
            }
            for each in master.evaluations
        ],
        "model_sha256": master.model_sha256,
        "stop_reason": master.stop_reason,
    }


def _losses_of_work(nodes: tuple[NodeReport, ...]) -> dict[str, Any]:
    return {
        "dropped_local_steps": _count(nodes, "dropped"),
        "unsent_local_steps": _count(nodes, "unsent"),
        "unresolved_local_steps": _count(nodes, "unresolved"),
        "skipped_boundaries": sum(node.skipped_boundaries for node in nodes),
        "overflows": sum(node.overflows for node in nodes),
    }


def _count(nodes: tuple[NodeReport, ...], name: str) -> int:
    return sum(len(StepRanges.parse(getattr(node, name))) for node in nodes)


def _node(node: NodeReport) -> dict[str, Any]:
    return {
        "local_steps": node.local_steps,
        "tokens": node.tokens,
        "train_loss": node.train_loss,
        "utilisation": node.compute_seconds / node.total_seconds if node.total_seconds else None,
        "deltas_landed": node.deltas_landed,
        "deltas_refused": node.deltas_refused,
        "installs": node.installs,
        "skipped_boundaries": node.skipped_boundaries,
        "dropped": node.dropped,
        "unsent": node.unsent,
        "unresolved": node.unresolved,
        "rejected": node.rejected,
        "bytes_up": node.bytes_up,
        "bytes_down": node.bytes_down,
        "commits": node.commits,
        "stop_reason": node.stop_reason,
        "data_note": node.data_note,
    }


def _run_seconds(last: View) -> float:
    """The run's time at the last look."""
    times = [node.now for node in last.nodes] + ([last.master.now] if last.master else [])
    return max(times, default=0) / MICROS_PER_SECOND


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
