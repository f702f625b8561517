# ruff: noqa: ARG005 - scripts need little of what they are given
"""Sessions and the loop of a grid, on a pool that follows a script."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console
from scripted_pool import ScriptedArena, ScriptedPool, StepClock, done

from ray_diloco.cluster.capacity import Capacity
from ray_diloco.experiment.schema import ProgressKind
from ray_diloco.experiment.sweep.board import Board, Standing
from ray_diloco.experiment.sweep.rows import Row, RowBook, Status, latest, read_rows
from ray_diloco.experiment.sweep.session import Progressed, Session, attempts_of
from ray_diloco.experiment.sweep.settings import LauncherSettings
from ray_diloco.experiment.sweep.side_by_side import run_all
from ray_diloco.experiment.sweep.work import Outcome


@dataclass
class Sweep:
    folder: Path
    pool: ScriptedPool
    rows: list[Row]
    keys: list[str]


@pytest.fixture
def sweep(tmp_path, proposed) -> Callable[..., Sweep]:
    """Run a list of overrides to its end. ``script``: what a task comes to."""

    def run(*points: str, script=lambda task: done(), asked=lambda: False, capacity=None, **given):
        settings, clock = LauncherSettings(**given), StepClock()
        pool = ScriptedPool(script, clock)
        arena = ScriptedArena(pool, *([capacity] if capacity else []))
        earlier = latest(read_rows(tmp_path)) if (tmp_path / "results.jsonl").exists() else []
        proposals = (proposed(*point.split(), number=n) for n, point in enumerate(points))
        board = Board(ProgressKind.none, Console(), clock)
        with RowBook(tmp_path) as book, closing(board):
            keys = run_all(
                Session(
                    arena, book, settings, sweep_dir=tmp_path, clock=clock,
                    attempts=attempts_of(earlier),
                ),
                proposals,
                {row.key: row for row in earlier if row.status.settled},
                standing=Standing(total=len(points), objective="eval_loss"),
                board=board,
                settings=settings,
                asked=asked,
            )  # fmt: skip
        return Sweep(tmp_path, pool, read_rows(tmp_path), keys)

    return run


def seed_of(task) -> int:
    return task.config.run.seed


SEEDS = [f"run.seed={seed}" for seed in range(5)]


def statuses(sweep: Sweep) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for row in sweep.rows:
        found.setdefault(row.trial, []).append(row.status.value)
    return found


def test_every_trial_runs_once_and_no_more_at_once_than_there_are_cpus(sweep):
    found = sweep(*SEEDS)
    assert statuses(found) == {number: ["done"] for number in range(5)}
    assert found.pool.most == 2
    assert {row.folder for row in found.rows} == {"0", "1", "2", "3", "4"}


def test_no_more_run_at_once_than_wanted(sweep):
    assert sweep(*SEEDS, max_concurrent=1).pool.most == 1


def test_no_more_run_at_once_than_memory_allows(sweep):
    gib = 2.0**30
    capacity = Capacity(cpus=64.0, memory=3.5 * gib, largest=64.0)
    assert sweep(*SEEDS, capacity=capacity, memory_per_trial=gib).pool.most == 3


def test_a_trial_that_needs_more_than_there_is_free_runs_alone(sweep):
    found = sweep(*SEEDS[:2], memory_per_trial=2.0**50)
    assert (found.pool.most, len(found.rows)) == (1, 2)


def test_a_trial_that_no_machine_can_hold_is_invalid_and_never_starts(sweep):
    found = sweep("run.seed=1", "run.threads_per_node=4")
    assert statuses(found) == {0: ["done"], 1: ["invalid"]}
    assert "no machine has more" in found.rows[0].error
    assert len(found.pool.started) == 1


def test_the_actors_of_a_trial_hold_a_gang_and_its_controller_no_cpu(sweep):
    big = Capacity(cpus=8.0, memory=2.0**40, largest=4.0)
    (found,) = sweep("engine=ray cluster.nodes=3", capacity=big).pool.started
    assert found[1:] == (0.0, [{"CPU": 1.0}] * 3)


def test_simulated_nodes_share_a_machine_that_is_too_small_for_one_cpu_each(sweep):
    (found,) = sweep("engine=ray cluster.nodes=8 data.synthetic_bytes=200000").pool.started
    assert found[1:] == (0.0, [{"CPU": 2.0}])


def test_a_refused_configuration_is_a_row_and_nothing_starts_for_it(sweep):
    found = sweep("diloco.inner_steps=0", "run.seed=0")
    assert statuses(found) == {0: ["invalid"], 1: ["done"]}
    assert [seed_of(task) for task, *_ in found.pool.started] == [0]
    assert found.rows[0].folder is None


@pytest.mark.parametrize(
    ("fate", "status", "reason"),
    [("died", "killed", "its process died"), ("oom", "oom", "to save memory")],
)
def test_a_process_that_dies_is_a_row_and_the_others_finish(sweep, fate, status, reason):
    found = sweep(*SEEDS[:3], script=lambda task: fate if seed_of(task) == 1 else done())
    assert statuses(found) == {0: ["done"], 1: [status], 2: ["done"]}
    (row,) = [each for each in found.rows if each.trial == 1]
    assert reason in row.error
    assert "so Ray says" in (found.folder / row.traceback_file).read_text()


def test_a_worker_goes_on_only_after_a_trial_that_ended_well(sweep):
    bad = Outcome(status=Status.failed, seconds=1.0, error="no", details="traceback.txt")
    found = sweep("run.seed=0", "run.seed=1", script=lambda t: bad if seed_of(t) else done())
    assert dict(found.pool.freed) == {1: True, 2: False}
    assert [row.traceback_file for row in found.rows] == [None, "1/traceback.txt"]


def test_a_trial_that_hangs_past_its_time_is_killed(sweep):
    found = sweep("run.seed=0", "run.seed=1", trial_timeout=5.0,
                  script=lambda task: None if seed_of(task) else done())  # fmt: skip
    assert statuses(found) == {0: ["done"], 1: ["timeout"]}
    row = found.rows[1]
    assert row.error == "not done after hydra.launcher.trial_timeout=5 seconds"
    assert 5.0 < row.duration <= 7.0
    assert (2, False) in found.pool.freed


def test_what_fails_is_tried_again_as_often_as_wanted_in_a_new_folder(sweep):
    tries: list[int] = []

    def script(task):
        tries.append(1)
        return "died" if len(tries) < 3 else done()

    found = sweep("run.seed=0", script=script, retries=2)
    assert [(row.attempt, row.status, row.folder) for row in found.rows] == [
        (1, "killed", "0"),
        (2, "killed", "0-2"),
        (3, "done", "0-3"),
    ]
    assert [task.config.hub.repo_id for task, *_ in found.pool.started] == [
        "debug-0", "debug-0-2", "debug-0-3"
    ]  # fmt: skip


def test_a_refused_configuration_is_not_tried_again(sweep):
    assert len(sweep("diloco.inner_steps=0", retries=3).rows) == 1


def test_with_fail_fast_the_first_failure_ends_the_sweep(sweep):
    def script(task):
        return {0: "died"}.get(seed_of(task))

    found = sweep(*SEEDS, script=script, fail_fast=True)
    assert statuses(found) == {0: ["killed"], 1: ["interrupted"]}


def test_a_sweep_that_is_asked_to_end_says_so_of_what_ran(sweep):
    asked = iter([False, False, False, True])
    found = sweep(*SEEDS, script=lambda task: None, asked=lambda: next(asked))
    assert statuses(found) == {0: ["interrupted"], 1: ["interrupted"]}


def test_a_point_that_is_proposed_twice_runs_once(sweep):
    found = sweep("diloco.outer_lr=0.5", "diloco.outer_lr=0.50")
    assert (len(found.rows), len(found.keys), len(set(found.keys))) == (1, 2, 1)


def test_a_sweep_that_goes_on_runs_only_what_is_missing_or_failed(sweep):
    first = sweep(*SEEDS[:3], script=lambda task: "died" if seed_of(task) == 1 else done())
    assert statuses(first) == {0: ["done"], 1: ["killed"], 2: ["done"]}
    (first.folder / "3").mkdir()  # of a driver that was killed
    second = sweep(*SEEDS)
    assert sorted(seed_of(task) for task, *_ in second.pool.started) == [1, 3, 4]
    rows = latest(second.rows)
    assert [row.trial for row in rows] == [0, 1, 2, 3, 4]
    assert all(row.status is Status.done for row in rows)
    assert [(row.attempt, row.folder) for row in rows] == [
        (1, "0"), (2, "1-2"), (1, "2"), (1, "3-2"), (1, "4")
    ]  # fmt: skip


def test_whoever_steps_a_session_hears_of_running_trials_and_can_stop_one(tmp_path, proposed):
    clock = StepClock()
    pool = ScriptedPool(lambda task: None, clock)
    with RowBook(tmp_path) as book:
        session = Session(
            ScriptedArena(pool), book, LauncherSettings(), sweep_dir=tmp_path, clock=clock
        )
        trial = proposed("run.seed=0", number=4)
        assert session.admits(trial)
        assert session.start(trial) is None
        _, told = session.step(0.1)
        assert told == [Progressed(trial=trial, evaluated="told by 1")]
        session.stop(4, "worse than the others")
        assert pool.stopped == [(1, "worse than the others")]
        pool.script = lambda task: done(status=Status.pruned)
        rows, _ = session.step(0.1)
        assert [row.status for row in rows] == [Status.pruned]
        assert session.running == []
