"""Run and sweep folders with enough in them to look at, from a formula."""

import json
import math
from pathlib import Path
from typing import Any

from ray_diloco.experiment.sweep.rows import Row, RowBook, Status

SECOND = 1_000_000
NODES = {"n0": 4, "n1": 6, "n2": 8, "node-with-a-long-name": 5}
"""Seconds from one delta to the next."""


def finished_run(folder: Path, *, seed: int = 0, lr: float = 0.7) -> Path:
    """60 seconds of 4 nodes, of which one is away for a while."""
    folder.mkdir(parents=True)
    config = f"run: {{run_id: run-{seed}, seed: {seed}}}\ntime: {{kind: virtual}}\n"
    (folder / "config.yaml").write_text(config)
    events = [each for node, every in NODES.items() for each in _node(node, every)]
    events += _rounds(lr + 0.1 * seed)
    lines = [json.dumps(each) + "\n" for each in sorted(events, key=lambda each: each["at"])]
    (folder / "events.jsonl").write_text("".join(lines))
    (folder / "result.json").write_text(json.dumps(result(lr + 0.1 * seed)))
    return folder


def finished_sweep(folder: Path) -> Path:
    """24 trials, of which two failed."""
    with RowBook(folder) as book:
        for trial in range(24):
            lr, momentum = (0.3, 0.5, 0.7, 1.0)[trial % 4], (0.0, 0.5, 0.9)[trial // 4 % 3]
            steps = 10 * (1 + trial // 12)
            bad = trial in (11, 23)
            if not bad:
                finished_run(folder / str(trial), lr=lr - momentum / 4 + steps / 100)
            book.append(
                Row(
                    trial=trial,
                    key=str(trial),
                    attempt=1,
                    status=Status.failed if bad else Status.done,
                    overrides={
                        "diloco.outer_lr": lr,
                        "diloco.outer_momentum": momentum,
                        "diloco.inner_steps": steps,
                    },
                    folder=str(trial),
                    duration=3.5,
                    error="TrainingError: node 'n1': 3 deltas in a row were not finite"
                    if bad
                    else None,
                    numbers={} if bad else result(lr - momentum / 4 + steps / 100),
                )
            )
    return folder


def result(lr: float) -> dict[str, Any]:
    node = {
        "local_steps": 100, "tokens": 51_200, "train_loss": 2.4, "utilisation": 0.97,
        "deltas_landed": 10, "installs": 12, "skipped_boundaries": 1, "bytes_up": 4_000_000,
        "bytes_down": 6_000_000, "stop_reason": "run.max_steps=100 reached", "data_note": None,
    }  # fmt: skip
    return {
        "status": "done", "failures": {}, "crashes": {"n2": 1}, "range_sum": "ok",
        "eval_loss": loss(60, lr), "tokens": 204_800, "run_seconds": 60.0 + 10 * lr, "seed": 0,
        "bytes_up": 40_000_000, "bytes_down": round(40_000_000 * (1 + lr)), "commits": 60,
        "commits_per_hour": 3600.0, "outer_steps": 12, "rejected_deltas": 1,
        "rejected": [{"path": "nodes/n1/delta_30.safetensors", "reason": "not finite"}],
        "nodes": dict.fromkeys(NODES, node), "wall_seconds": 12.0, "overrides": [], "versions": {},
    }  # fmt: skip


def loss(seconds: float, lr: float) -> float:
    """Falls towards a floor that is lowest at 0.8."""
    return 2 + (lr - 0.8) ** 2 + 3.5 * math.exp(-seconds / 15)


def _event(name: str, who: str, seconds: float, **fields: Any) -> dict[str, Any]:
    return {"event": name, "participant": who, "at": round(seconds * SECOND), **fields}


def _node(node: str, every: int) -> list[dict[str, Any]]:
    events = [
        _event("node_started", node, 0, first_step=0, resumed=None),
        _event("waited", node, 1, began=0),
    ]
    for step, at in enumerate(range(every, 60, every), start=1):
        if node == "n2" and 30 < at < 45:
            continue
        if node == "n2" and at == 48:
            events.append(_event("node_started", node, 45, first_step=0, resumed=30))
        told = {"local_step": 10 * step, "covers": f"{10 * step - 9}-{10 * step}"}
        events.append(_event("upload_started", node, at, loss=loss(at, 0.9) + 0.2, **told))
        events.append(_event("delta_landed", node, at + 0.8, **told))
        fetched = round((at + 1) * SECOND)
        events.append(_event("global_fetched", node, at + 2, outer_step=step, began=fetched))
    return [*events, _event("node_stopping", node, 60, local_step=100, reason="done")]


def _rounds(lr: float) -> list[dict[str, Any]]:
    events = [_event("evaluation", "n0/master", 0, outer_step=0, loss=loss(0, lr), tokens_total=0)]
    for step in range(1, 12):
        at, tokens = 5 * step, 5000 * step
        deltas = [
            {
                "node": node,
                "local_step": 10 * (at // every),
                "staleness": step % 3,
                "bytes": 400_000,
            }
            for node, every in NODES.items()
            if at - 5 < every * (at // every) <= at
        ]
        began = round((at - 0.4) * SECOND)
        told = {"outer_step": step, "tokens_total": tokens}
        events.append(_event("publication", "n0/master", at, began=began, deltas=deltas, **told))
        events.append(_event("evaluation", "n0/master", at, loss=loss(at, lr), **told))
    return events
