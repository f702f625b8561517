"""One trial from its configuration to what it leaves, inside a worker process."""

import logging
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ray_diloco.cluster.engine import View
from ray_diloco.cluster.pool import Channel
from ray_diloco.cluster.shared_hub import SharedHub
from ray_diloco.errors import ConfigError, RayDilocoError
from ray_diloco.experiment.launch import open_stage
from ray_diloco.experiment.main import find_user_modules
from ray_diloco.experiment.run import run
from ray_diloco.experiment.schema import Config
from ray_diloco.experiment.sweep.rows import Status
from ray_diloco.logs import log_handler, mask_tokens
from ray_diloco.protocol.clock import MICROS_PER_SECOND
from ray_diloco.timing.wall import WallClock

LOG, TRACEBACK = "run.log", "traceback.txt"
STARVED = ("MemoryError", "not enough memory", "can't allocate memory", "out of memory")
"""What errors say of themselves when memory was missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a worker is given. ``hub``: the one of the sweep; None: the trial brings its own."""

    config: Config
    run_dir: Path
    overrides: tuple[str, ...]
    hub: SharedHub | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of it. ``details``: the file in the run folder that tells more."""

    status: Status
    seconds: float
    numbers: dict[str, Any] = field(default_factory=dict[str, Any])
    error: str | None = None
    details: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """An intermediate held-out loss of a trial, in nats per token, of the global that was published
    at ``seconds`` of the run's time.
    """

    seconds: float
    outer_step: int
    loss: float
    tokens: int


def run_trial(task: Task, *, channel: Channel, gang: Any) -> Outcome:
    """Run it, tell intermediate losses, and end early when asked to. Never raises."""
    find_user_modules()
    clock = WallClock()
    with _log_to(task.run_dir / LOG, task.config.run.log_level.value):
        found = _attempt(task, channel, gang)
    return Outcome(seconds=clock.now() / MICROS_PER_SECOND, **found)


def _attempt(task: Task, channel: Channel, gang: Any) -> dict[str, Any]:
    try:
        result = run(
            task.config,
            task.run_dir,
            stage=partial(open_stage, shared_hub=task.hub, gang=gang),
            progress=_Told(channel),
            overrides=task.overrides,
            wish=lambda: channel.wish,
        )
    except Exception as error:
        return _failed(error, task.run_dir)
    if result.status == "failed":
        error = _failures(result.numbers)
        status = Status.oom if _starved(error) else Status.failed
        return {"status": status, "numbers": result.numbers, "error": error, "details": LOG}
    status = Status.pruned if result.status == "stopped" else Status.done
    return {"status": status, "numbers": result.numbers}


def _failed(error: Exception, run_dir: Path) -> dict[str, Any]:
    """A setting that cannot be is told as it is; anything else leaves its traceback."""
    line = str(error) if isinstance(error, RayDilocoError) else f"{type(error).__name__}: {error}"
    line = mask_tokens(" ".join(line.split()))
    if isinstance(error, ConfigError):
        return {"status": Status.invalid, "error": line}
    run_dir.mkdir(parents=True, exist_ok=True)
    told = mask_tokens("".join(traceback.format_exception(error)))
    (run_dir / TRACEBACK).write_text(told, encoding="utf-8")
    status = Status.oom if isinstance(error, MemoryError) or _starved(line) else Status.failed
    return {"status": status, "error": line, "details": TRACEBACK}


def _failures(numbers: dict[str, Any]) -> str:
    """Of the participants, and of the account of local steps."""
    lines = [f"{who}: {why}" for who, why in numbers["failures"].items()]
    violations = numbers["range_sum"]
    lines += violations if isinstance(violations, list) else []
    return mask_tokens("; ".join(lines)) or "failed"


def _starved(text: str) -> bool:
    return any(each in text for each in STARVED)


class _Told:
    """Passes evaluations on."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def show(self, view: View) -> None:
        for event in view.events:
            if event["event"] == "evaluation":
                self._channel.tell(
                    Evaluated(
                        seconds=event.get("published_at", event["at"]) / MICROS_PER_SECOND,
                        outer_step=event["outer_step"],
                        loss=event["loss"],
                        tokens=event["tokens_total"],
                    )
                )

    def note(self, text: str) -> None:
        logging.getLogger(__name__).info("%s", text)

    def close(self) -> None: ...


@contextmanager
def _log_to(file: Path, level: str) -> Generator[None, None, None]:
    """This trial's log, apart from that of the next one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handler = log_handler(file, delay=True)
    logger = logging.getLogger("ray_diloco")
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
