"""Sweeps as a user starts them: real processes."""

import json
import shutil
import signal
from pathlib import Path

import pytest
from end_to_end.programs import SMALL, left_behind
from sweeps import assert_complete, kill, on, rows_of, statuses, swept

from ray_diloco.experiment.sweep.rows import Status, latest

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

TROUBLED = (
    "model=custom",
    "model.allow_targets=[troubled]",
    "+model.custom._target_=troubled.Troubled",
    "hub=memory",
)


def test_trials_that_raise_die_hang_or_starve_are_rows_and_the_others_finish(ray_of_all, tmp_path):
    shutil.copy(Path(__file__).with_name("troubled.py"), tmp_path)  # as a user's module lies there
    words = ("+model.custom.trouble=hang,raise,kill,memory,none", "hydra.launcher.trial_timeout=30")
    words += ("hydra.launcher.max_concurrent=3",)  # others end while one hangs
    with swept(*on(ray_of_all), *TROUBLED, *words, folder=tmp_path) as sweep:
        assert sweep.end() == 1, sweep.output
        last = sweep.output.splitlines()[-1]
    assert last == (
        "ray-diloco: 4 of 5 trials did not end well: 1 failed, 1 killed, 1 oom, 1 timeout"
    )
    assert statuses(tmp_path) == {
        0: Status.timeout, 1: Status.failed, 2: Status.killed, 3: Status.oom, 4: Status.done
    }  # fmt: skip
    for row in rows_of(tmp_path):
        if row.status is not Status.done:
            assert f"trial {row.trial} {row.status.value}" in sweep.output
            assert (tmp_path / "sweep" / row.traceback_file).stat().st_size
    (failed,) = [row for row in rows_of(tmp_path) if row.status is Status.failed]
    assert "the third step goes wrong" in failed.error
    assert "Traceback" in (tmp_path / "sweep" / failed.traceback_file).read_text()


def test_a_driver_that_is_killed_goes_on_with_each_trial_exactly_once(
    ray_of_all, command, tmp_path
):
    seeds = ("run.seed=range(0,4)",)
    with swept(*seeds, "hydra.launcher.max_concurrent=1", folder=tmp_path) as first:
        first.until(lambda: len(rows_of(tmp_path)) >= 1)
        kill(first)
    before = len(rows_of(tmp_path))
    assert 1 <= before < 4
    code, _, error = command("-m", *SMALL, *seeds, f"hydra.sweep.dir={tmp_path / 'sweep'}")
    assert code == 2
    assert "holds a sweep already; sweep.resume=true goes on" in error
    with swept(*on(ray_of_all), *seeds, "sweep.resume=true", folder=tmp_path) as second:
        assert second.end() == 0, second.output
    assert_complete(tmp_path, range(4))
    assert len(rows_of(tmp_path)) == 4


def test_a_sweep_that_was_interrupted_says_so_and_goes_on(ray_of_all, tmp_path):
    seeds = ("run.seed=range(0,4)",)
    with swept(*seeds, "hydra.launcher.max_concurrent=1", folder=tmp_path) as first:
        first.until(lambda: len(rows_of(tmp_path)) >= 1)
        started = first.descendants()
        first.press_ctrl_c()
        assert first.end() == 130, first.output
        assert "Traceback" not in first.output
        assert left_behind(started) == []
    interrupted = [row for row in rows_of(tmp_path) if row.status is Status.interrupted]
    assert interrupted or len(rows_of(tmp_path)) == 1
    with swept(*on(ray_of_all), *seeds, "sweep.resume=true", folder=tmp_path) as second:
        assert second.end() == 0, second.output
    assert_complete(tmp_path, range(4))


def test_a_trial_has_the_same_trace_alone_in_a_sweep_first_or_last(ray_of_all, command, tmp_path):
    def hashes(*words: str, name: str) -> dict[tuple[str, int], str]:
        with swept(*on(ray_of_all), *words, folder=tmp_path, name=name) as sweep:
            assert sweep.end() == 0, sweep.output
        rows = latest(rows_of(tmp_path, name))
        return {(row.choices["engine"], row.seed): row.numbers["trace_hash"] for row in rows}

    forward = hashes("engine=inproc,ray", "time=virtual", "run.seed=0,1", name="forward")
    backward = hashes("run.seed=1,0", "hydra.launcher.max_concurrent=1", name="backward")
    alone = tmp_path / "alone"
    code, _, error = command(*SMALL, "run.seed=1", "engine=inproc", f"hydra.run.dir={alone}")
    assert code == 0, error
    first, last = (forward["inproc", seed] for seed in (0, 1))
    assert first != last
    assert [forward["ray", seed] for seed in (0, 1)] == [first, last]
    assert backward == {("inproc", 1): last, ("inproc", 0): first}
    assert json.loads((alone / "result.json").read_text())["trace_hash"] == last


def test_points_are_repeated_by_seed_and_the_answer_has_a_spread(ray_of_all, tmp_path):
    words = ("hub=memory", "diloco.outer_lr=0.3,0.9", "sweep.seeds=2")
    with swept(*on(ray_of_all), *words, folder=tmp_path) as sweep:
        assert sweep.end() == 0, sweep.output
    assert [row.seed for row in latest(rows_of(tmp_path))] == [0, 1, 0, 1]
    for text in ("best points", "spread", "effect of diloco.outer_lr", "4 of 4 done"):
        assert text in sweep.output
    assert (tmp_path / "sweep" / "results.parquet").exists()


def test_a_sigterm_ends_a_sweep_like_ctrl_c(tmp_path):
    with swept("run.seed=range(0,3)", "hydra.launcher.max_concurrent=1", folder=tmp_path) as sweep:
        sweep.until(lambda: len(rows_of(tmp_path)) >= 1)
        started = sweep.descendants()
        sweep.process.send_signal(signal.SIGTERM)
        assert sweep.end() == 130, sweep.output
        assert left_behind(started) == []
