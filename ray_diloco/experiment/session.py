"""The numbers of one session of a run: its participants started, and ended. A run that is resumed
has several; `sessions` makes one account of them.
"""

import math
from typing import Any

from ray_diloco.cluster.engine import Ending, View
from ray_diloco.experiment.history import Session
from ray_diloco.experiment.killed import TRAFFIC
from ray_diloco.experiment.range_sum import books_of, check_range_sum
from ray_diloco.protocol.clock import MICROS_PER_SECOND
from ray_diloco.protocol.fragments import described, steps_of
from ray_diloco.protocol.ranges import StepRanges
from ray_diloco.protocol.run import MasterReport, MasterStatus, NodeReport

OF_INCARNATION = (
    *("local_steps", "tokens", "deltas_landed", "deltas_refused", "installs"),
    *("skipped_boundaries", "overflows"),
)
"""A node that goes on from its checkpoint counts on from there, whatever session it is."""
OF_SESSION = ("compute_seconds", "total_seconds", *TRAFFIC)


def session_numbers(
    ending: Ending, last: View, *, number: int, since: int, stopped: bool
) -> Session:
    """``since``: the run's time at its start, in microseconds. What nobody is left to tell is
    None.
    """
    nodes, master = ending.nodes, ending.master
    verdict = _range_sum(ending)
    reports = (*nodes, *([master] if master else []))
    return {
        "session": number,
        "status": _status(ending, verdict, stopped=stopped),
        "error": _error(ending, verdict),
        "failures": ending.failures,
        "crashes": ending.crashes,
        "range_sum": verdict,
        "began_seconds": since / MICROS_PER_SECOND,
        "ended_seconds": _run_seconds(last, since),
        **{name: sum(getattr(each, name) for each in reports) for name in TRAFFIC},
        **(_rounds(master) if master is not None else _seen_of_rounds(last)),
        "nodes": {node.node_id: _node(node, master) for node in nodes},
        "unreported": _unreported(ending, last),
    }


def finite(value: float | None) -> float | None:
    """None for what is no number, or infinite."""
    return value if value is not None and math.isfinite(value) else None


def _status(ending: Ending, verdict: str | list[str], *, stopped: bool) -> str:
    if ending.failures or isinstance(verdict, list):
        return "failed"
    return "stopped" if stopped else "done"


def _error(ending: Ending, verdict: str | list[str]) -> str | None:
    """Why it failed, in one line: the master's reason first, since the nodes' follow from it."""
    for name in sorted(ending.failures, key=lambda name: "/" not in name):
        return f"{name}: {ending.failures[name]}"
    return verdict[0] if isinstance(verdict, list) else None


def _range_sum(ending: Ending) -> str | list[str]:
    """The word ok, why it was not checked, or the violations."""
    if ending.master is None:
        return "unchecked: no master ran here, or it left no report"
    violations = check_range_sum(ending.nodes, ending.master)
    silent = sorted(name for name in ending.failures if "/" not in name)
    if silent and not violations:
        return f"unchecked: no report of {', '.join(silent)}; ok for the others"
    return violations or "ok"


def _run_seconds(last: View, since: int) -> float:
    """The run's time at the last look."""
    times = [node.now for node in last.nodes] + ([last.master.now] if last.master else [])
    return max([since, *times]) / MICROS_PER_SECOND


def _rounds(master: MasterReport) -> dict[str, Any]:
    """What the master did, and where it has come to."""
    return {
        "outer_steps": master.outer_steps,
        "deltas_merged": master.deltas_merged,
        "tokens_merged": master.tokens_total,
        "staleness": {str(age): master.staleness[age] for age in sorted(master.staleness)},
        "conflicts": master.conflicts,
        "fallback_rounds": master.fallback_rounds,
        "model_sha256": master.model_sha256,
        "stop_reason": master.stop_reason,
    }


def _seen_of_rounds(last: View) -> dict[str, Any]:
    """Without a master's report: what it said of itself last, or what the nodes saw of one that
    runs elsewhere.
    """
    status = last.master or MasterStatus()
    seen = max([status.outer_step, *(node.base_outer_step for node in last.nodes)])
    told = last.master is not None
    return {
        "outer_steps": max(seen, 0),
        "deltas_merged": status.deltas_merged if told else None,
        "tokens_merged": status.tokens_total if told else None,
        "staleness": None,
        "conflicts": None,
        "fallback_rounds": None,
        "model_sha256": None,
        "stop_reason": None,
    }


def _node(node: NodeReport, master: MasterReport | None) -> dict[str, Any]:
    """As `sessions` wants it. What the master has of a node's lost or unresolved steps is neither
    lost nor unresolved. A step counts when one fragment of it does.
    """
    books = books_of(node, master)
    return {
        "nonce": node.nonce,
        **{name: getattr(node, name) for name in (*OF_INCARNATION, *OF_SESSION)},
        "train_loss": finite(node.train_loss),
        "diverged": node.train_loss is not None and not math.isfinite(node.train_loss),
        "dropped": str(steps_of(books["dropped"].union(books["lost"]))),
        "unsent": str(steps_of(books["unsent"])),
        "unresolved": str(steps_of(books["unresolved"])),
        "rejected": {described(StepRanges.parse(of)): why for of, why in node.rejected.items()},
        "stop_reason": node.stop_reason,
        "data_note": node.data_note,
    }


def _unreported(ending: Ending, last: View) -> dict[str, dict[str, Any]]:
    """What nodes without a report said of themselves last: local steps of this session; tokens of
    the incarnation, of which ``tokens_before`` were there when the session began.
    """
    reported = {node.node_id for node in ending.nodes}
    return {
        status.node_id: {
            "nonce": status.nonce,
            "tokens": status.tokens,
            "tokens_before": status.tokens_before,
            "local_steps": status.local_step - status.steps_before,
        }
        for status in last.nodes
        if status.node_id not in reported
    }
