"""The command ``ray-diloco-paper``: runs the study of ``conf/paper.yaml`` and writes its table.

A run that has come to its end is not run again, so that the same command goes on where it was
stopped.
"""

import argparse
import multiprocessing
import re
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from ray_diloco.errors import RayDilocoError, UsageError
from ray_diloco.experiment.conf_folder import conf_dir
from ray_diloco.experiment.gates import Gate, Numbers, Rows, gates_table, judge, runs_table
from ray_diloco.experiment.legible import mapping_of, understood
from ray_diloco.experiment.one_line import one_line_errors
from ray_diloco.experiment.run_files import MODEL, RESULT
from ray_diloco.unread import say

STUDY, TABLE = "paper.yaml", "table.md"
FAILED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """``runs``: overrides by name; ``warm_up``: of the run whose weights they all start from."""

    warm_up: list[str]
    runs: dict[str, list[str]]
    gates: list[Gate]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run of the study."""

    name: str
    seed: int
    folder: Path
    overrides: tuple[str, ...]


def read_study(path: Path) -> Study:
    """What a file says. UsageError when it holds no study, or a gate names a run that is not
    there.
    """
    with understood(path, holds="a study: warm_up, runs and gates"):
        plain: Any = OmegaConf.to_container(OmegaConf.load(path))
        study = Study(
            warm_up=plain["warm_up"],
            runs=plain["runs"],
            gates=[Gate(**each) for each in plain["gates"]],
        )
    for gate in study.gates:
        for name in (*gate.runs, *gate.minus):
            if name not in study.runs:
                raise UsageError(f"{path}: gate {gate.says!r} names no run: {name!r}")
    return study


def tasks_of(
    study: Study, folder: Path, *, seeds: Sequence[int], changes: Sequence[str] = ()
) -> tuple[list[Task], list[Task]]:
    """The warm-ups, and what follows them. ``changes``: overrides of every run."""
    warm_ups = [_task("warm up", study.warm_up, folder, seed, changes) for seed in seeds]
    runs = [
        _task(name, [*overrides, f"model.weights={warm_up.folder / MODEL}"], folder, seed, changes)
        for name, overrides in study.runs.items()
        for warm_up, seed in zip(warm_ups, seeds, strict=True)
    ]
    return warm_ups, runs


def _task(
    name: str, overrides: Sequence[str], folder: Path, seed: int, changes: Sequence[str]
) -> Task:
    place = folder / f"{re.sub('[^a-z0-9.]+', '-', name)}-seed{seed}"
    words = (*overrides, f"run.seed={seed}", "run.report=false", *changes)
    return Task(name=name, seed=seed, folder=place.absolute(), overrides=words)


def require_legible(tasks: Sequence[Task]) -> None:
    """UsageError, which names the run, for settings that do not exist and values of a wrong kind:
    at once, since a run may come to its turn after an hour.
    """
    from ray_diloco.experiment.api import configure

    for task in tasks:
        try:
            configure(task.overrides)
        except UsageError as error:
            raise UsageError(f"run {task.name!r}: {error}") from error


def perform(tasks: Sequence[Task], *, jobs: int) -> Rows:
    """Run what has not come to its end, so many at once, each in a process of its own."""
    rows: dict[str, dict[int, Numbers]] = {task.name: {} for task in tasks}
    missing: list[Task] = []
    for task in tasks:
        numbers = _result_of(task)
        if numbers is None:
            missing.append(task)
        else:
            rows[task.name][task.seed] = numbers
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawned, max_tasks_per_child=1) as pool:
        under_way = {pool.submit(play, task): task for task in missing}
        for number, future in enumerate(as_completed(under_way), start=1):
            task, numbers = under_way[future], future.result()
            rows[task.name][task.seed] = numbers
            loss, state = numbers.get("eval_loss"), numbers["status"]
            say(f"{number}/{len(missing)} {task.name}, seed {task.seed}: {state}, loss {loss}")
    return rows


def _result_of(task: Task) -> Numbers | None:
    """None when it has to be run: it never was, or not to its end."""
    file = task.folder / RESULT
    if not file.exists():
        return None
    numbers = mapping_of(file, holds="the result of a run", needs={"status": str})
    return numbers if numbers["status"] == "done" else None


def play(task: Task) -> dict[str, Any]:
    """The numbers of one run, from its start; of one that could not be run, why."""
    from ray_diloco.experiment.api import run  # torch and all, in the process of the run alone

    shutil.rmtree(task.folder, ignore_errors=True)  # what an end in between has left
    try:
        return run(task.overrides, folder=task.folder).numbers
    except RayDilocoError as error:
        return {"status": f"failed: {error}", "eval_loss": None, "run_seconds": None}


def write_table(study: Study, rows: Rows, folder: Path) -> str:
    """Both tables into the study's folder, and the text of it."""
    findings = judge(study.gates, rows)
    text = f"{gates_table(findings)}\n\n{runs_table(rows)}\n"
    (folder / TABLE).write_text(text, encoding="utf-8")
    return text


def main(words: Sequence[str] | None = None) -> None:
    """Exits with 0, 1 (a run failed) or 2 (wrong use); a gate that fails is no error."""
    with one_line_errors("ray-diloco-paper"):
        given = _parser().parse_args(words)
        study = _chosen(read_study(given.study), given.only)
        folder: Path = given.folder.expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        warm_ups, tasks = tasks_of(study, folder, seeds=given.seeds, changes=given.changes)
        require_legible([task for task in (*warm_ups, *tasks) if task.seed == given.seeds[0]])
        done = perform(warm_ups, jobs=given.jobs)
        if _all_done(done):
            done = perform(tasks, jobs=given.jobs)
        print(write_table(study, done, folder))
        sys.exit(0 if _all_done(done) else FAILED)


def _chosen(study: Study, only: Sequence[str]) -> Study:
    """With these runs alone; none: all."""
    for name in only:
        if name not in study.runs:
            known = "; ".join(study.runs)
            raise UsageError(f"--only={name!r}: expected a run of the study: {known}")
    return replace(study, runs={name: study.runs[name] for name in only or study.runs})


def _all_done(rows: Rows) -> bool:
    return all(each["status"] == "done" for by_seed in rows.values() for each in by_seed.values())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ray-diloco-paper",
        description="Run the published orderings of DiLoCo through the whole system, in virtual "
        "time, and write a table that says which hold. The same command goes on where it was "
        "stopped.",
    )
    parser.add_argument("folder", type=Path, help="where all runs and table.md go")
    parser.add_argument("changes", nargs="*", help="overrides of every run: data=stdlib")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--jobs", type=int, default=2, help="how many runs at once (2)")
    parser.add_argument("--only", nargs="+", default=[], metavar="RUN", help="these runs alone")
    parser.add_argument("--study", type=Path, default=conf_dir() / STUDY, help="another study")
    return parser


if __name__ == "__main__":
    main()
