"""Writing the run folder; `run_files` says what is in it."""

import shutil
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.events import EventLog, as_json, cut_torn_line, read_events
from ray_diloco.experiment.history import NO_HISTORY, History, begun_at, kept_result
from ray_diloco.experiment.killed import keep_last_status
from ray_diloco.experiment.metrics import Curves, write_metrics
from ray_diloco.experiment.reading import to_yaml
from ray_diloco.experiment.run_files import (
    CONFIG,
    EVENTS,
    HUB,
    METRICS,
    MODEL,
    RESULT,
    SESSIONS,
    STARTING,
    STATE,
    TIMELINE,
    write_atomically,
)
from ray_diloco.experiment.schema import Config
from ray_diloco.experiment.timeline import timeline
from ray_diloco.experiment.tracking.points import Point, final_points, points_of
from ray_diloco.experiment.tracking.tracker import Beside
from ray_diloco.protocol.clock import Clock
from ray_diloco.protocol.run import Event, MasterReport


class Records:
    """The open records of one session of a run. `finish` completes them; `close` at any time."""

    def __init__(
        self,
        run_dir: Path,
        config: Config,
        *,
        run_id: str,
        clock: Clock,
        history: History = NO_HISTORY,
        tracker: Beside | None = None,
    ) -> None:
        """The run goes on from its ``history``; what result.json said stays beside it.
        ``tracker``: gets the curves as well.
        """
        run_dir.mkdir(parents=True, exist_ok=True)
        self.run_dir = run_dir
        known = replace(config, run=replace(config.run, run_id=run_id or None, resume=None))
        write_atomically(run_dir / CONFIG, to_yaml(known))
        earlier = len(history.sessions)
        keep_last_status(run_dir, earlier, killed=history.result is None)
        if history.result is not None:
            (run_dir / RESULT).replace(kept_result(run_dir, earlier))
        _begin_session(run_dir / SESSIONS, earlier + 1, at=history.ended_at, clock=clock)
        self.evaluations = list(history.evaluations)
        """Held-out losses of the whole run, one for each outer step and number of tokens."""
        self.rejections = list(history.rejections)
        """Events of deltas that were rejected, likewise."""
        self._events = EventLog(run_dir / EVENTS, clock)
        (run_dir / STARTING).unlink(missing_ok=True)
        self._curves = Curves(run_dir / "tensorboard")
        self._tracker = tracker

    def keep(self, events: Iterable[Event]) -> None:
        """Write what happened; flushed when this returns. An evaluation that is known already is
        left out.
        """
        new = [event for event in events if self._is_new(event)]
        self.rejections += [each for each in new if each["event"] == "delta_rejected"]
        if new:
            self._events.keep(new)
            self._keep_points([point for event in new for point in points_of(event)])

    def events(self) -> Iterator[Event]:
        """Of the whole run, from the start."""
        return read_events(self.run_dir / EVENTS)

    def begun(self) -> list[str]:
        """When each session of the run began, ISO 8601."""
        return begun_at(self.run_dir)

    def finish(self, result: dict[str, Any], *, model: Path | None) -> None:
        """Complete the folder; ``result.json`` comes last, so that it stands for a whole run."""
        write_metrics(self.events(), self.run_dir / METRICS)
        drawn = timeline(self.events())
        write_atomically(self.run_dir / TIMELINE, as_json(drawn))
        if model is not None and model.exists():
            _copy_atomically(model, self.run_dir / MODEL)
        write_atomically(self.run_dir / RESULT, as_json(result, indent=2) + "\n")
        if self._tracker is not None:
            self._tracker.keep(final_points(result))
            self._tracker.end(result["status"])

    def close(self) -> None:
        self._events.close()
        self._curves.close()

    def _keep_points(self, points: list[Point]) -> None:
        self._curves.keep(points)
        if self._tracker is not None:
            self._tracker.keep(points)

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


def _begin_session(path: Path, number: int, *, at: int, clock: Clock) -> None:
    cut_torn_line(path)
    with path.open("a", encoding="utf-8") as file:
        file.write(as_json({"session": number, "at": at, "wall_at": clock.utc()}) + "\n")


def require_free(run_dir: Path, *, resume: bool) -> None:
    """ConfigError when the folder holds a run already that is not to be resumed, or what is left of
    one: its repository, which a new run would take for its own.
    """
    if resume:
        return
    if (run_dir / EVENTS).exists():
        raise ConfigError(
            "hydra.run.dir", str(run_dir), "holds a run already; run.resume=<it> goes on"
        )
    begun = (run_dir / STARTING).exists()
    if not begun and next((run_dir / HUB).rglob("*.journal"), None) is not None:
        raise ConfigError(
            "hydra.run.dir",
            str(run_dir),
            f"holds the repository of an earlier run ({HUB}/), but not its {EVENTS}: expected a"
            " folder without a run",
        )


@contextmanager
def starting(run_dir: Path) -> Generator[None, None, None]:
    """While a run starts and lasts: its folder says so until the records begin. What a start has
    left that was killed before goes with its repository, since nobody has heard of it.
    """
    mark, made = run_dir / STARTING, not run_dir.exists()
    if not (run_dir / EVENTS).exists():
        if mark.exists() and (run_dir / HUB).exists():
            shutil.rmtree(run_dir / HUB)
            shutil.rmtree(run_dir / STATE, ignore_errors=True)
        run_dir.mkdir(parents=True, exist_ok=True)
        mark.touch()
    try:
        yield
    finally:
        if not (run_dir / HUB).exists():
            mark.unlink(missing_ok=True)
            if made:
                with suppress(OSError):  # it holds something by now
                    run_dir.rmdir()


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
            "published_at": each.at,
        }
        for each in report.evaluations
    ]


def _copy_atomically(source: Path, path: Path) -> None:
    partial = path.with_name(f"{path.name}.partial")
    shutil.copyfile(source, partial)
    partial.replace(path)
