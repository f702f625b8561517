"""Searches as a user starts them: real processes."""

import pytest
from end_to_end.programs import SMALL, program
from sweeps import kill, on, rows_of, swept

from ray_diloco.experiment.sweep.rows import Status, latest

SEARCH = ("hydra/sweeper=optuna", "hub=memory")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("run.seed=0",), "expected a setting with values"),
        (("run.seed=0,1", "sweep.seeds=2"), "expected 1 where run.seed is given"),
        (("run.seed=0,1", "search.objectives=[]"), "search.objectives"),
        (("run.seed=0,1", "search.objectives=[bites_up]"), "did you mean bytes_up?"),
        (("run.seed=0,1", "hydra/launcher=basic"), "expected ray_pool"),
    ],
)
def test_a_search_that_cannot_be_is_refused_before_anything_starts(command, tmp_path, words, told):
    folder = tmp_path / "search"
    code, _, error = command("-m", *SEARCH, *SMALL, *words, f"hydra.sweep.dir={folder}")
    assert code == 2
    assert told in error.splitlines()[-1]
    assert not (folder / "results.jsonl").exists()


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_search_ends_a_bad_trial_early_and_goes_on_where_it_stopped(ray_of_all, tmp_path):
    words = (
        "inner.learning_rate=3e-3,1e-8",
        "run.max_steps=300",
        "search.sampler=grid",
        "search.pruner=median",
        "search.prune_every=0.5",
        "search.prune_after=1",
        "hydra.launcher.max_concurrent=1",
    )
    words = (*SEARCH, *on(ray_of_all), *words)
    with swept(*words, folder=tmp_path) as first:
        assert first.end() == 0, first.output
    good, bad = latest(rows_of(tmp_path))
    assert (good.status, bad.status) == (Status.done, Status.pruned), first.output
    assert bad.numbers["run_seconds"] < good.numbers["run_seconds"]
    with swept(*words, "sweep.resume=true", folder=tmp_path) as second:
        assert second.end() == 0, second.output
        assert "2 of 2 done" in second.output
    assert len(rows_of(tmp_path)) == 2


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_search_for_several_objectives_ends_with_their_front(ray_of_all, tmp_path):
    words = (
        "diloco.outer_lr=tag(log,interval(0.1,1))",
        "cluster=uniform,two_speed",
        "search.objectives=[eval_loss,virtual_seconds]",
        "search.trials=4",
    )
    with swept(*SEARCH, *on(ray_of_all), *words, folder=tmp_path) as search:
        assert search.end() == 0, search.output
        assert "best for eval_loss and run_seconds" in search.output
    rows = latest(rows_of(tmp_path))
    assert [row.status for row in rows] == [Status.done] * 4
    assert all(0.1 <= row.overrides["diloco.outer_lr"] <= 1.0 for row in rows)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_search_whose_driver_was_killed_goes_on_with_each_trial_exactly_once(
    ray_of_all, tmp_path
):
    words = (*SEARCH, *on(ray_of_all), "diloco.outer_lr=interval(0.1,1)", "search.trials=4")
    with swept(*words, "hydra.launcher.max_concurrent=1", folder=tmp_path) as first:
        first.until(lambda: len(rows_of(tmp_path)) >= 1)
        kill(first)
    before = {row.key for row in rows_of(tmp_path)}
    assert 1 <= len(before) < 4
    with swept(*words, "sweep.resume=true", folder=tmp_path) as second:
        assert second.end() == 0, second.output
    rows = rows_of(tmp_path)
    assert [row.trial for row in latest(rows)] == [0, 1, 2, 3]
    assert {row.status for row in latest(rows)} == {Status.done}
    assert len(rows) == len({row.key for row in rows})
    assert before <= {row.key for row in rows}


@pytest.mark.slow
def test_without_optuna_a_search_says_what_to_install(tmp_path):
    (tmp_path / "optuna.py").write_text("raise ModuleNotFoundError(name='optuna')")
    with program(
        "ray_diloco.experiment.main", "-m", *SEARCH, "run.seed=0,1", folder=tmp_path,
        PYTHONPATH=str(tmp_path),
    ) as search:  # fmt: skip
        assert search.end() == 2
        assert "pip install 'ray-diloco[sweep]'" in search.output.splitlines()[-1]
