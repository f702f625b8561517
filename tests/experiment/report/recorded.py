"""Run folders that were written by hand: small, and every number in them is known."""

import json
from pathlib import Path
from typing import Any

SECOND = 1_000_000
CONFIG = "run:\n  run_id: by-hand\ntime:\n  kind: virtual\n"

_NODE = {
    "local_steps": 20,
    "tokens": 200,
    "train_loss": 2.0,
    "utilisation": 1.0,
    "deltas_landed": 2,
    "installs": 1,
    "skipped_boundaries": 0,
    "bytes_up": 1000,
    "bytes_down": 3000,
    "stop_reason": "run.max_steps=20 reached",
    "data_note": None,
}

RESULT: dict[str, Any] = {
    "status": "done",
    "failures": {},
    "crashes": {},
    "range_sum": "ok",
    "eval_loss": 2.5,
    "tokens": 400,
    "run_seconds": 12.0,
    "bytes_up": 5000,
    "bytes_down": 7000,
    "commits": 6,
    "commits_per_hour": 1800.0,
    "outer_steps": 2,
    "rejected_deltas": 0,
    "rejected": [],
    "nodes": {"n0": _NODE, "n1": _NODE},
    "wall_seconds": 1.5,
    "overrides": ["run.max_steps=20"],
    "versions": {"python": "3.11"},
}


def event(name: str, who: str, seconds: float, **fields: Any) -> dict[str, Any]:
    began = {"began": round(fields.pop("began") * SECOND)} if "began" in fields else {}
    at = round(seconds * SECOND)
    return {"event": name, "participant": who, "at": at, **began, **fields}


def delta(node: str, step: int, *, staleness: int = 0) -> dict[str, Any]:
    return {"node": node, "local_step": step, "staleness": staleness, "bytes": 500, "loss": 3.0}


def upload(node: str, seconds: float, step: int, loss: float | str = 3.0) -> dict[str, Any]:
    covers = f"{step - 9}-{step}"
    return event("upload_started", node, seconds, local_step=step, covers=covers, loss=loss)


EVENTS = [
    event("node_started", "n0", 0, first_step=0, resumed=None),
    event("waited", "n0", 1, began=0),
    upload("n0", 3, 10, 4.0),
    event("delta_landed", "n0", 4, local_step=10),
    event("publication", "n0/master", 5, began=4.5, outer_step=1, deltas=[delta("n0", 10)],
          tokens_total=100),
    event("evaluation", "n0/master", 5.5, outer_step=1, loss=3.5, tokens_total=100),
    event("global_fetched", "n0", 6, began=5, outer_step=1),
    event("node_started", "n1", 2, first_step=0, resumed=None),
    upload("n1", 7, 10, 3.8),
    event("publication", "n0/master", 8, began=7.5, outer_step=2,
          deltas=[delta("n1", 10, staleness=1)], tokens_total=200),
    event("evaluation", "n0/master", 8.5, outer_step=2, loss=2.5, tokens_total=200),
    event("node_stopping", "n0", 9, local_step=20, reason="done"),
    event("node_stopping", "n1", 12, local_step=20, reason="done"),
]  # fmt: skip


def write_run(
    folder: Path,
    *,
    events: list[dict[str, Any]] | None = None,
    result: dict[str, Any] | None = RESULT,
    config: str = CONFIG,
) -> Path:
    """``result`` None: a run that goes on."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(config)
    lines = [json.dumps(each) + "\n" for each in (EVENTS if events is None else events)]
    (folder / "events.jsonl").write_text("".join(lines))
    if result is not None:
        (folder / "result.json").write_text(json.dumps(result))
    return folder
