"""What a run has merged so far, read from what it writes; and how it ends when it is asked to."""

import hashlib
from collections import Counter

from end_to_end.programs import Program
from safetensors import safe_open

from ray_diloco.master.round_memory import LEDGER
from ray_diloco.protocol.ledger import Account, Ledger
from ray_diloco.protocol.ranges import StepRanges


def rounds(run: Program) -> int:
    """Publications that merged something."""
    return sum(bool(each["deltas"]) for each in run.events("publication"))


def go_on(run: Program, more: int = 2) -> None:
    """Wait until the run has merged more."""
    before = rounds(run)
    run.until(lambda: rounds(run) >= before + more)


def stopped_well(run: Program) -> dict:
    """Ask it to end; gives its result, in which every step is accounted for."""
    run.press_ctrl_c()
    assert run.end() == 130, run.output
    assert run.result["status"] == "stopped"
    assert run.result["range_sum"] == "ok"
    model = (run.run_dir / "model.safetensors").read_bytes()
    assert hashlib.sha256(model).hexdigest() == run.result["model_sha256"]
    return run.result


def merged(run: Program, node_id: str) -> Counter[int]:
    """How often each of its local steps is in a global."""
    covers = [
        StepRanges.parse(delta["covers"])
        for event in run.events("publication")
        for delta in event["deltas"]
        if delta["node"] == node_id
    ]
    return Counter(step for ranges in covers for step in ranges)


def accounts(run: Program) -> dict[tuple[str, str], Account]:
    """What the master's own memory has of each incarnation. It knows of publications that no event
    tells of, since the process that writes events was killed before it heard of them.
    """
    files = (run.run_dir / "state" / "master").rglob("outer_state.safetensors")
    newest = max(files, key=lambda file: file.stat().st_mtime)
    with safe_open(newest, framework="pt") as state:
        return dict(Ledger.from_json(state.metadata()[LEDGER], rows={}).accounts)


def none_twice(run: Program, *node_ids: str) -> bool:
    """No delta was merged again, by whichever master: a node never uses a number twice."""
    counts = [merged(run, name) for name in node_ids]
    return all(counts) and {times for each in counts for times in each.values()} == {1}
