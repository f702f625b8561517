"""Whether published orderings hold: from the numbers of runs to a table. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Numbers = Mapping[str, Any]
"""Of one run, as result.json has them: ``eval_loss`` (None when there is none), ``run_seconds``,
``dropped_local_steps``, and ``alone_eval_loss`` where it was asked for.
"""

Rows = Mapping[str, Mapping[int, Numbers]]
"""Runs by name, then by seed."""

Verdict = Literal["pass", "fail", "not run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The least loss of ``runs``, less the least of ``minus`` (none: less 0; ``minus_alone``: that
    of the first run's fastest node alone), lies above and below these; ``time_below``: so does the
    first run's time as a share of the first of ``minus``. A loss that is no number is infinite: the
    run diverged.
    """

    says: str
    runs: list[str]
    minus: list[str] = field(default_factory=list[str])
    minus_alone: bool = False
    above: float | None = None
    below: float | None = None
    time_below: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What came of a gate. Losses in nats, by seed; ``time_share``: mean over the seeds."""

    gate: Gate
    verdict: Verdict
    differences: dict[int, float] = field(default_factory=dict[int, float])
    time_share: float | None = None

    @property
    def mean(self) -> float:
        return sum(self.differences.values()) / len(self.differences)


def judge(gates: Sequence[Gate], rows: Rows) -> list[Finding]:
    """A finding for each gate, of the seeds that all its runs have."""
    return [_judge(gate, rows) for gate in gates]


def _judge(gate: Gate, rows: Rows) -> Finding:
    names = [*gate.runs, *gate.minus]
    seeds = set.intersection(*(set(rows.get(name, {})) for name in names))
    if not seeds:
        return Finding(gate=gate, verdict="not run")
    differences = {seed: _difference(gate, rows, seed) for seed in sorted(seeds)}
    share = _time_share(gate, rows, sorted(seeds))
    mean = sum(differences.values()) / len(differences)
    holds = (
        (gate.above is None or mean > gate.above)
        and (gate.below is None or mean < gate.below)
        and (gate.time_below is None or (share is not None and share < gate.time_below))
    )
    return Finding(
        gate=gate, verdict="pass" if holds else "fail", differences=differences, time_share=share
    )


def _difference(gate: Gate, rows: Rows, seed: int) -> float:
    best = min(_loss(rows[name][seed]) for name in gate.runs)
    others = [_loss(rows[name][seed]) for name in gate.minus]
    if gate.minus_alone:
        others.append(_loss(rows[gate.runs[0]][seed], "alone_eval_loss"))
    other = min(others, default=0.0)
    return best - other if math.isfinite(other) else math.nan


def _loss(numbers: Numbers, name: str = "eval_loss") -> float:
    loss = numbers.get(name)
    return loss if loss is not None and math.isfinite(loss) else math.inf


def _time_share(gate: Gate, rows: Rows, seeds: Sequence[int]) -> float | None:
    if gate.time_below is None:
        return None
    run, other = rows[gate.runs[0]], rows[gate.minus[0]]
    return sum(run[seed]["run_seconds"] / other[seed]["run_seconds"] for seed in seeds) / len(seeds)


def gates_table(findings: Sequence[Finding]) -> str:
    """Markdown: a line for each gate."""
    lines = ["| gate | by seed | mean | verdict |", "|---|---|---|---|"]
    for finding in findings:
        by_seed = " / ".join(f"{value:+.3f}" for value in finding.differences.values())
        mean = f"{finding.mean:+.3f}" if finding.differences else ""
        if finding.time_share is not None:
            mean += f" in {finding.time_share:.2f} of the time"
        lines.append(f"| {finding.gate.says} | {by_seed} | {mean} | {finding.verdict} |")
    return "\n".join(lines)


def runs_table(rows: Rows) -> str:
    """Markdown: a line for each run."""
    lines = [
        "| run | loss by seed | virtual seconds | steps dropped | status |",
        "|---|---|---|---|---|",
    ]
    for name, by_seed in rows.items():
        seeds = sorted(by_seed)
        losses = " / ".join(f"{_loss(by_seed[seed]):.3f}" for seed in seeds)
        times = " / ".join(f"{by_seed[seed].get('run_seconds') or 0:.0f}" for seed in seeds)
        dropped = " / ".join(str(by_seed[seed].get("dropped_local_steps") or 0) for seed in seeds)
        states = " / ".join(str(by_seed[seed].get("status")) for seed in seeds)
        lines.append(f"| {name} | {losses} | {times} | {dropped} | {states} |")
    return "\n".join(lines)
