"""The run folder: what is written when, and how.

config.yaml        the resolved configuration, at the start
events.jsonl       every event as it comes
tensorboard/       curves as they come
metrics.parquet    the numbers of all events, at the end
timeline.json      who did what when, for Perfetto, at the end
model.safetensors  the final global, at the end
result.json        the result, last of all
"""

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.build import CONFIG_FILE
from ray_diloco.experiment.events import EventLog, as_json, read_events
from ray_diloco.experiment.metrics import Curves, write_metrics
from ray_diloco.experiment.reading import to_yaml
from ray_diloco.experiment.schema import Config
from ray_diloco.experiment.timeline import timeline
from ray_diloco.protocol.clock import Clock
from ray_diloco.protocol.run import Event, MasterReport

EVENTS, METRICS, TIMELINE, MODEL, RESULT = (
    "events.jsonl",
    "metrics.parquet",
    "timeline.json",
    "model.safetensors",
    "result.json",
)


class Records:
    """The open records of one run. `finish` completes them; `close` at any time."""

    def __init__(self, run_dir: Path, config: Config, *, run_id: str, clock: Clock) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        self.run_dir = run_dir
        known = replace(config, run=replace(config.run, run_id=run_id or None, resume=None))
        write_atomically(run_dir / CONFIG_FILE, to_yaml(known))
        (run_dir / RESULT).unlink(missing_ok=True)
        self.evaluations: list[Event] = []
        """Held-out losses so far, one for each outer step and number of tokens."""
        self._events = EventLog(run_dir / EVENTS, clock)
        self._curves = Curves(run_dir / "tensorboard")

    def keep(self, events: Iterable[Event]) -> None:
        """Write what happened; flushed when this returns. An evaluation that is known already is
        left out.
        """
        new = [event for event in events if self._is_new(event)]
        if new:
            self._events.keep(new)
            self._curves.keep(new)

    def finish(self, result: dict[str, Any], *, model: Path | None) -> None:
        """Complete the folder; ``result.json`` comes last, so that it stands for a whole run."""
        write_metrics(read_events(self.run_dir / EVENTS), self.run_dir / METRICS)
        drawn = timeline(read_events(self.run_dir / EVENTS))
        write_atomically(self.run_dir / TIMELINE, as_json(drawn))
        if model is not None and model.exists():
            _copy_atomically(model, self.run_dir / MODEL)
        write_atomically(self.run_dir / RESULT, as_json(result, indent=2) + "\n")

    def close(self) -> None:
        self._events.close()
        self._curves.close()

    def _is_new(self, event: Event) -> bool:
        if event["event"] != "evaluation":
            return True
        known = any(
            all(event[name] == each[name] for name in ("outer_step", "tokens_total"))
            for each in self.evaluations
        )
        if not known:
            self.evaluations.append(event)
        return not known


def require_free(run_dir: Path, *, resume: bool) -> None:
    """ConfigError when the folder holds a run already that is not to be resumed."""
    if (run_dir / EVENTS).exists() and not resume:
        raise ConfigError(
            "hydra.run.dir", str(run_dir), "holds a run already; run.resume=<it> goes on"
        )


def evaluation_events(report: MasterReport, participant: str) -> list[Event]:
    """The report's held-out losses as events."""
    return [
        {
            "event": "evaluation",
            "participant": participant,
            "at": each.at,
            "outer_step": each.outer_step,
            "loss": each.loss,
            "tokens_total": each.tokens_total,
        }
        for each in report.evaluations
    ]


def write_atomically(path: Path, text: str) -> None:
    """The whole text or the file as it was."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def _copy_atomically(source: Path, path: Path) -> None:
    partial = path.with_name(f"{path.name}.partial")
    shutil.copyfile(source, partial)
    partial.replace(path)
