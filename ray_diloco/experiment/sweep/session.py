"""Trials side by side: what may start, starts; what ends, is a row; whoever asks sees the rest."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.schema import Config
from ray_diloco.experiment.sweep.admission import Need, may_start, need_of
from ray_diloco.experiment.sweep.arena import Arena
from ray_diloco.experiment.sweep.rows import Row, RowBook, Status
from ray_diloco.experiment.sweep.settings import LauncherSettings
from ray_diloco.experiment.sweep.trials import Refused, Trial
from ray_diloco.protocol.clock import MICROS_PER_SECOND, Clock, Micros, micros

LOOK_EVERY = micros(0.5)
"""Between two questions to running trials for intermediate losses."""
DIED = "died.txt"
_ENDS = {"died": "its process died", "oom": "its process was killed to save memory"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed:
    """A running trial has told an intermediate loss."""

    trial: Trial
    evaluated: Any
    """A `work.Evaluated`."""


@dataclass(slots=True, kw_only=True)
class _Running:
    trial: Trial
    attempt: int
    need: Need
    run_dir: Path
    began_at: Micros | None = None
    started_at: str = ""


class Session:
    """Runs trials and writes their rows. ``attempts``: how often each key was tried before."""

    def __init__(
        self,
        arena: Arena,
        book: RowBook,
        settings: LauncherSettings,
        *,
        sweep_dir: Path,
        clock: Clock,
        attempts: dict[str, int] | None = None,
    ) -> None:
        self._arena = arena
        self._book = book
        self._settings = settings
        self._sweep_dir = sweep_dir
        self._clock = clock
        self._attempts = dict(attempts or {})
        self._running: dict[int, _Running] = {}
        self._tickets = 0
        self._looked = Micros(0)

    @property
    def running(self) -> list[Trial]:
        return [each.trial for each in self._running.values()]

    def refuse(self, refused: Refused) -> Row:
        """The row of a point that cannot be run."""
        row = Row(
            trial=refused.number,
            key=refused.key,
            attempt=self._next_attempt(refused.key),
            status=Status.invalid,
            overrides=refused.overrides,
            choices=refused.choices,
            started_at=self._clock.utc(),
            error=refused.error,
        )
        return self._keep(row)

    def admits(self, trial: Trial) -> bool:
        """Whether it may start beside those that run. True for one that never could: `start` says
        so.
        """
        try:
            need = self._need(trial)
        except ConfigError:
            return True
        running = [each.need for each in self._running.values()]
        return may_start(need, running, self._arena.capacity, self._settings)

    def start(self, trial: Trial) -> Row | None:
        """Begin as soon as its worker is there. Its row at once when no machine can hold it."""
        from ray_diloco.experiment.sweep.work import Task, run_trial  # torch

        try:
            need = self._need(trial)
        except ConfigError as error:
            known = {"number": trial.number, "key": trial.key, "overrides": trial.overrides}
            return self.refuse(Refused(error=str(error), choices=trial.choices, **known))
        attempt = self._next_attempt(trial.key)
        run_dir = self._free_folder(trial.folder)
        self._tickets += 1
        task = Task(
            config=_with_own_repository(trial, run_dir.relative_to(self._sweep_dir)),
            run_dir=run_dir,
            overrides=trial.words,
            hub=self._arena.hub_for(trial.config),
        )
        bundles = [{"CPU": each} for each in need.bundles]
        self._arena.pool.start(
            self._tickets, run_trial, (task,), cpus=need.worker_cpus, bundles=bundles
        )
        self._running[self._tickets] = _Running(
            trial=trial, attempt=attempt, need=need, run_dir=run_dir, started_at=self._clock.utc()
        )
        return None

    def step(self, timeout: float) -> tuple[list[Row], list[Progressed]]:
        """Rows of trials that ended, and what others told; waits at most ``timeout`` seconds."""
        begun, ended = self._arena.pool.wait(timeout)
        now = self._clock.now()
        for ticket in begun:
            self._running[ticket].began_at = now
        told = self._told({each.ticket for each in ended})
        rows = [self._take(each) for each in ended]
        return rows + self._overdue(), told

    def stop(self, number: int, reason: str) -> None:
        """Ask a trial to end early; its row says `pruned`."""
        for ticket, each in self._running.items():
            if each.trial.number == number:
                self._arena.pool.stop(ticket, reason)

    def interrupt(self) -> list[Row]:
        """End what runs at once; the rows of these trials."""
        return [
            self._end(ticket, Status.interrupted, "the sweep was asked to end")
            for ticket in list(self._running)
        ]

    def _need(self, trial: Trial) -> Need:
        return need_of(trial.config, self._settings, self._arena.capacity)

    def _next_attempt(self, key: str) -> int:
        self._attempts[key] = self._attempts.get(key, 0) + 1
        return self._attempts[key]

    def _free_folder(self, name: str) -> Path:
        """A new folder, even after a sweep that died before it could write the trial's row."""
        number, path = 1, self._sweep_dir / name
        while path.exists():
            number += 1
            path = self._sweep_dir / f"{name}-{number}"
        path.mkdir(parents=True)
        return path

    def _told(self, ended: set[int]) -> list[Progressed]:
        if self._clock.now() < self._looked + LOOK_EVERY:
            return []
        self._looked = self._clock.now()
        found = self._arena.pool.told([each for each in self._running if each not in ended])
        return [
            Progressed(trial=self._running[ticket].trial, evaluated=each)
            for ticket, told in found.items()
            for each in told
        ]

    def _take(self, ended: Any) -> Row:
        """The row of an ended piece of work; its worker goes on only after a trial that ended well,
        since another one may have left threads behind.
        """
        if ended.fate == "returned":
            outcome = ended.value
            return self._finish(
                ended.ticket,
                reuse=outcome.status.settled or outcome.status is Status.invalid,
                status=outcome.status,
                duration=outcome.seconds,
                error=outcome.error,
                numbers=outcome.numbers,
                details=outcome.details,
            )
        status = {"died": Status.killed, "oom": Status.oom}.get(ended.fate, Status.failed)
        return self._end(ended.ticket, status, _ENDS.get(ended.fate, "failed"), str(ended.error))

    def _overdue(self) -> list[Row]:
        limit = self._settings.trial_timeout
        if limit is None:
            return []
        now = self._clock.now()
        late = [
            ticket
            for ticket, each in self._running.items()
            if each.began_at is not None and now - each.began_at > micros(limit)
        ]
        reason = f"not done after hydra.launcher.trial_timeout={limit:g} seconds"
        return [self._end(ticket, Status.timeout, reason) for ticket in late]

    def _end(self, ticket: int, status: Status, reason: str, told: str = "") -> Row:
        """The row of a trial that left no account of itself; what is known goes to a file."""
        running = self._running[ticket]
        (running.run_dir / DIED).write_text(f"{reason}\n{told}".rstrip() + "\n", encoding="utf-8")
        now = self._clock.now()
        began = running.began_at if running.began_at is not None else now
        return self._finish(
            ticket,
            reuse=False,
            status=status,
            duration=(now - began) / MICROS_PER_SECOND,
            error=reason,
            details=DIED,
        )

    def _finish(self, ticket: int, *, reuse: bool, details: str | None, **fields: Any) -> Row:
        running = self._running.pop(ticket)
        self._arena.pool.free(ticket, reuse=reuse)
        folder = running.run_dir.relative_to(self._sweep_dir).as_posix()
        row = Row(
            trial=running.trial.number,
            key=running.trial.key,
            attempt=running.attempt,
            overrides=running.trial.overrides,
            choices=running.trial.choices,
            started_at=running.started_at,
            folder=folder,
            traceback_file=f"{folder}/{details}" if details else None,
            **fields,
        )
        return self._keep(row)

    def _keep(self, row: Row) -> Row:
        self._book.append(row)
        return row


def attempts_of(rows: Sequence[Row]) -> dict[str, int]:
    """How often each trial was tried."""
    found: dict[str, int] = {}
    for row in rows:
        found[row.key] = max(found.get(row.key, 0), row.attempt)
    return found


def _with_own_repository(trial: Trial, folder: Path) -> Config:
    """Each attempt has a repository that nobody has used."""
    hub = trial.config.hub
    repo_id = f"{hub.repo_id or trial.config.run.name}-{'-'.join(folder.parts)}"
    return replace(trial.config, hub=replace(hub, repo_id=repo_id))
