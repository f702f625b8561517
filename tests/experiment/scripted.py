# ruff: noqa: ARG002 - it follows a protocol and needs little of it
"""Reports, and an engine that follows a script: what an experiment meets instead of training."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from ray_diloco.cluster.engine import Ending, View
from ray_diloco.cluster.hub_service import HubAccess
from ray_diloco.hub.secret import Secret
from ray_diloco.master.plan import MasterPlan
from ray_diloco.node.plan import NodePlan
from ray_diloco.protocol.run import (
    Evaluation,
    MasterReport,
    MasterStatus,
    NodeReport,
    NodeStatus,
)


def node_report(node_id: str = "n0", **fields) -> NodeReport:
    defaults = {
        "nonce": f"nonce-{node_id}",
        "local_steps": 12,
        "first_step": 0,
        "tokens": 1200,
        "train_loss": 2.5,
        "data_note": None,
        "manifest": "0" * 64,
        "stop_reason": "run.max_steps=12 reached",
        "dropped": "",
        "unsent": "",
        "unresolved": "",
        "rejected": {},
        "awaiting": {},
        "overflows": 0,
        "skipped_boundaries": 1,
        "installs": 2,
        "mismatched_entries": 0,
        "deltas_landed": 3,
        "deltas_refused": 0,
        "bytes_up": 100,
        "bytes_down": 10,
        "requests": 7,
        "commits": 4,
        "compute_seconds": 1.0,
        "total_seconds": 2.0,
    }
    return NodeReport(node_id=node_id, **(defaults | fields))


def master_report(**fields) -> MasterReport:
    defaults = {
        "outer_steps": 2,
        "deltas_merged": 6,
        "accounts": {},
        "staleness": {1: 2, 0: 4},
        "rejected": [],
        "evaluations": [
            Evaluation(outer_step=0, loss=5.5, tokens_total=0, at=0),
            Evaluation(outer_step=2, loss=3.25, tokens_total=2400, at=1_500_000),
        ],
        "tokens_total": 2400,
        "stop_reason": "every node is done",
        "model_file": "",
        "model_sha256": "0" * 64,
        "bytes_up": 50,
        "bytes_down": 500,
        "requests": 20,
        "commits": 3,
        "conflicts": 0,
    }
    return MasterReport(**(defaults | fields))


def status(node_id: str = "n0", **fields) -> NodeStatus:
    return NodeStatus(node_id=node_id, **fields)


class ScriptedEngine:
    """Follows the protocol of an engine: each look shows one more local step of every node, until
    the plans' `run.max_steps`, a stop, or ``fail_at``.
    """

    def __init__(
        self, *, on_look=None, failures=None, lost: str = "", master=None, node=None
    ) -> None:
        """``master``, ``node``: fields of their reports."""
        self._master_fields, self._node_fields = master or {}, node or {}
        self._on_look = on_look
        self._failures = failures or {}
        self._lost = lost
        self.looks = 0
        self.stop_reasons: list[str] = []
        self.closed = 0
        self.nodes: tuple[NodePlan, ...] = ()
        self.master: MasterPlan | None = None

    def start(self, nodes: Sequence[NodePlan], master: MasterPlan | None) -> None:
        self.nodes, self.master = tuple(nodes), master
        for folder in {self._model.parent, *(plan.state_dir for plan in nodes)}:
            folder.mkdir(parents=True, exist_ok=True)
        save_file({"weight": torch.ones(2)}, self._model)

    def look(self, timeout: float) -> View:
        self.looks += 1
        if self._on_look is not None:
            self._on_look(self.looks)
        now = self.nodes[0].run.since + self.looks * 100_000
        steps = min(self.looks, self._most)
        nodes = tuple(
            status(
                plan.node_id,
                state="training",
                local_step=steps,
                tokens=100 * steps,
                loss=5 - 0.1 * steps,
                base_outer_step=-1 if plan.role == "single" else steps // 4,
                now=now,
                training_since=0,
            )
            for plan in self.nodes
        )
        ended = steps >= self._most or bool(self.stop_reasons)
        return View(
            nodes=nodes, master=self._master_status(now), events=self._events(now), ended=ended
        )

    def stop(self, reason: str) -> None:
        self.stop_reasons.append(reason)

    def finish(self) -> Ending:
        steps = min(self.looks, self._most)
        reports = tuple(
            self._node_report(plan, steps)
            for plan in self.nodes
            if plan.node_id not in self._failures
        )
        accounts = {
            each.node_id: {each.nonce: {"merged": self._lost or f"1-{steps}", "rejected": ""}}
            for each in reports
        }
        if self.master is None:
            return Ending(nodes=reports, master=None, failures=dict(self._failures))
        if self.master.master_id + "/master" in self._failures:
            return Ending(nodes=reports, master=None, failures=dict(self._failures))
        fields = {"accounts": accounts, "model_file": str(self._model)} | self._master_fields
        master = master_report(**fields)
        return Ending(nodes=reports, master=master, failures=dict(self._failures))

    def close(self) -> None:
        self.closed += 1

    def _node_report(self, plan: NodePlan, steps: int) -> NodeReport:
        model = str(self._model) if plan.role == "single" else None
        fields = {"local_steps": steps, "tokens": 100 * steps, "model_file": model}
        return node_report(plan.node_id, **(fields | self._node_fields))

    @property
    def _most(self) -> int:
        return self.nodes[0].limits.max_steps or 10**9

    @property
    def _model(self) -> Path:
        leader = self.master or self.nodes[0]
        return leader.state_dir / "model.safetensors"

    def _master_status(self, now: int) -> MasterStatus | None:
        if self.master is None:
            return None
        state = "failed" if self.master.master_id + "/master" in self._failures else "waiting"
        return replace(
            MasterStatus(), state=state, outer_step=self.looks // 4, deltas_merged=3, now=now
        )

    def _events(self, now: int) -> tuple[dict, ...]:
        if self.master is None:
            return self._evaluation(now)
        return tuple(
            {
                "event": "upload_started",
                "participant": plan.node_id,
                "at": now,
                "local_step": self.looks,
                "covers": str(self.looks),
                "loss": 4.5,
                "tokens": 100,
                "final": False,
            }
            for plan in self.nodes
        )

    def _evaluation(self, now: int) -> tuple[dict, ...]:
        """Of a node that trains alone: before its first step and after its last."""
        if self.nodes[0].role != "single" or self.looks not in (1, self._most):
            return ()
        loss = 5.0 if self.looks == 1 else 3.0
        told = {"outer_step": 0, "loss": loss, "tokens_total": self.looks}
        return ({"event": "evaluation", "participant": "n0", "at": now, **told},)


class ScriptedStage:
    """A stage whose engine follows a script; as a context manager it is its own."""

    def __init__(self, engine: ScriptedEngine, *, refusal: Exception | None = None) -> None:
        self.engine = engine
        self.entered: list[tuple[str, bool]] = []
        self._refusal = refusal

    def __call__(self, config, identity) -> "ScriptedStage":
        return self

    def __enter__(self) -> "ScriptedStage":
        return self

    def __exit__(self, *error: object) -> None:
        assert self.engine.closed or not self.engine.nodes

    def open_hub(self, settings, *, run_id: str, leads: bool, run_dir: Path) -> HubAccess:
        if self._refusal is not None:
            raise self._refusal
        self.entered.append((run_id, leads))
        return HubAccess(repo_id=f"local/{run_id}", endpoint="http://hub", token=Secret("x"))

    def open_engine(self, run_dir: Path, *, log_level: str) -> ScriptedEngine:
        return self.engine

    def trace_hash(self) -> str | None:
        return None
