"""Whole searches on a pool that follows a script."""

import math
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import optuna
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from optuna.trial import TrialState
from rich.console import Console
from scripted_pool import ScriptedArena, ScriptedPool, StepClock, done

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.schema import ProgressKind
from ray_diloco.experiment.sweep.board import Board, Standing
from ray_diloco.experiment.sweep.rows import ROWS, Row, RowBook, Status, latest, read_rows
from ray_diloco.experiment.sweep.search import Search
from ray_diloco.experiment.sweep.search_settings import PrunerName, SamplerName, SearchSettings
from ray_diloco.experiment.sweep.search_space import read_space
from ray_diloco.experiment.sweep.search_study import NUMBER, STATUS, open_study, wanted
from ray_diloco.experiment.sweep.session import Session, attempts_of
from ray_diloco.experiment.sweep.settings import LauncherSettings
from ray_diloco.experiment.sweep.side_by_side import run_all
from ray_diloco.experiment.sweep.work import Evaluated

LR = "diloco.outer_lr=interval(0.1,1)"


class TellingPool(ScriptedPool):
    """Each trial tells, once a second of its time, a loss that its outer learning rate decides, and
    ends when it is asked to.
    """

    def told(self, tickets):
        return {ticket: [self._evaluated(ticket)] for ticket in tickets}

    def wait(self, timeout):
        given = self.script
        stopped = [self._running.get(ticket) for ticket, _ in self.stopped]
        pruned = done(status=Status.pruned)
        self.script = lambda task: pruned if any(task is x for x in stopped) else given(task)
        try:
            return super().wait(timeout)
        finally:
            self.script = given

    def _evaluated(self, ticket: int) -> Evaluated:
        times = self.__dict__.setdefault("times", Counter())
        times[ticket] += 1
        loss = self._running[ticket].config.diloco.outer_lr
        return Evaluated(seconds=float(times[ticket]), outer_step=1, tokens=1, loss=loss)


@dataclass
class Found:
    rows: list[Row]
    pool: ScriptedPool
    study: optuna.Study
    known: list[int]
    """When each point was proposed: how many had been told."""

    def statuses(self) -> list[str]:
        return [row.status.value for row in latest(self.rows)]

    def trials(self, *states: TrialState) -> list[optuna.trial.FrozenTrial]:
        return self.study.get_trials(states=states or None)


@pytest.fixture
def search(tmp_path, proposed) -> Callable[..., Found]:
    """Run a search to its end. ``script``: what a task comes to."""

    def run(*words: str, script=lambda task: of_lr(task), resume=False, seeds=1, launcher=None,
            asked=lambda: False, folder: Path = tmp_path, **given) -> Found:  # fmt: skip
        settings, clock = SearchSettings(**{"trials": 6} | given), StepClock()
        space = read_space(OverridesParser.create().parse_overrides(list(words)))
        pool = TellingPool(script, clock)
        earlier = latest(read_rows(folder)) if (folder / ROWS).exists() else []
        known: list[int] = []
        opened = []

        def open_once():
            opened.append(open_study(settings, space, folder, resume=resume))
            return opened[0]

        def propose(point, number):
            known.append(len(opened[0].study.get_trials(states=(TrialState.COMPLETE,))))
            return [
                proposed(*point, f"run.seed={seed}", number=number * seeds + seed)
                for seed in range(seeds)
            ]

        following = Search(
            open=open_once,
            space=space,
            settings=settings,
            propose=propose,
            mark_seconds=settings.mark_seconds(20.0),
            rows={row.key: row for row in earlier if row.status.settled},
        )
        board = Board(ProgressKind.none, Console(), clock)
        with RowBook(folder) as book, closing(board):
            run_all(
                Session(
                    ScriptedArena(pool), book, LauncherSettings(**launcher or {}),
                    sweep_dir=folder, clock=clock, attempts=attempts_of(earlier),
                ),
                following.proposals(),
                dict(following.rows),
                standing=Standing(total=wanted(settings, space) * seeds, objective="eval_loss"),
                board=board,
                settings=LauncherSettings(**launcher or {}),
                asked=asked,
                follower=following,
            )  # fmt: skip
        return Found(read_rows(folder), pool, opened[0].study, known)

    return run


def lr_of(task) -> float:
    return task.config.diloco.outer_lr


def of_lr(task, **fields):
    """Best at 0.7."""
    return done(loss=abs(lr_of(task) - 0.7), **fields)


def without_loss(task):
    del task
    return done(loss=None)


def dies(task):
    del task
    return "died"


def test_a_point_is_proposed_as_soon_as_another_has_ended(search):
    first: list = []

    def script(task):
        first.append(task)
        return of_lr(task) if task is not first[0] or len(first) > 9 else None

    found = search(LR, script=script)
    assert found.known == [0, 0, 1, 2, 3, 4]
    assert found.pool.most == 2
    assert found.statuses() == ["done"] * 6


def test_each_point_is_told_what_came_of_it(search):
    found = search(LR)
    losses = {row.trial: row.eval_loss for row in found.rows}
    assert {each.user_attrs[NUMBER]: each.value for each in found.trials()} == losses
    assert len(losses) == 6


def test_the_same_search_proposes_the_same_points(search, tmp_path):
    one_by_one = {"launcher": {"max_concurrent": 1}, "trials": 4}
    first = search(LR, folder=tmp_path / "a", **one_by_one)
    second = search(LR, folder=tmp_path / "b", **one_by_one)
    other = search(LR, folder=tmp_path / "c", seed=1, **one_by_one)
    keys = [[row.key for row in each.rows] for each in (first, second, other)]
    assert keys[0] == keys[1]
    assert not set(keys[0]) & set(keys[2])


@pytest.mark.parametrize("sampler", list(SamplerName))
def test_every_sampler_proposes_what_it_was_asked_for(search, sampler):
    values = "diloco.outer_lr=range(0.2,0.8,0.1)"
    assert len(search(values, sampler=sampler).trials(TrialState.COMPLETE)) == 6


def test_what_dies_fails_or_is_refused_counts_as_the_worst(search):
    def script(task):
        return "died" if lr_of(task) == 0.2 else of_lr(task)

    points = ("diloco.outer_lr=0.2,0.5,0.6", "diloco.inner_steps=0,3")
    found = search(*points, script=script, sampler=SamplerName.grid)
    assert sorted(found.statuses()) == ["done"] * 2 + ["invalid"] * 3 + ["killed"]
    told = {each.user_attrs[NUMBER]: each for each in found.trials(TrialState.COMPLETE)}
    for row in found.rows:
        expected = row.eval_loss if row.status is Status.done else math.inf
        assert told[row.trial].value == pytest.approx(expected)
        assert told[row.trial].user_attrs[STATUS] == row.status.value


def test_a_loss_that_is_not_finite_counts_as_the_worst(search):
    found = search(LR, script=without_loss, trials=1)
    assert found.trials()[0].value == math.inf


def test_an_objective_that_results_do_not_have_is_refused(search):
    with pytest.raises(ConfigError, match=r"search\.objectives='beauty'"):
        search(LR, objectives=["beauty"])


def test_of_several_objectives_each_is_told(search):
    def script(task):
        return done(numbers={"eval_loss": 1.0, "run_seconds": lr_of(task)})

    found = search(LR, script=script, objectives=["eval_loss", "run_seconds"])
    for each in found.trials():
        assert each.values == [1.0, pytest.approx(each.params["diloco.outer_lr"])]


def test_a_point_counts_by_the_mean_of_its_seeds(search):
    found = search(
        LR, trials=2, seeds=2, script=lambda task: done(loss=float(task.config.run.seed))
    )
    assert [row.trial for row in latest(found.rows)] == [0, 1, 2, 3]
    assert [each.value for each in found.trials()] == [0.5, 0.5]


def test_a_point_that_is_proposed_again_is_told_without_running_again(search):
    found = search("diloco.outer_lr=0.3,0.9", trials=8, sampler=SamplerName.random)
    assert len(found.pool.started) == 2
    assert len(found.trials(TrialState.COMPLETE)) == 8


def test_a_trial_that_is_tried_again_is_told_once(search):
    tries: list[int] = []

    def script(task):
        tries.append(1)
        return "died" if len(tries) == 1 else of_lr(task)

    found = search(LR, script=script, launcher={"retries": 1}, trials=1)
    assert [row.status for row in found.rows] == ["killed", "done"]
    assert [each.value for each in found.trials()] == [found.rows[1].eval_loss]


@pytest.mark.parametrize("pruner", [PrunerName.median, PrunerName.successive_halving])
def test_a_trial_that_is_worse_than_others_at_the_same_time_ends_early(search, pruner):
    looks: Counter[float] = Counter()

    def script(task):
        looks[lr_of(task)] += 1
        return of_lr(task) if looks[lr_of(task)] > 20 else None

    found = search(
        "diloco.outer_lr=0.3,0.2,0.4,0.9",
        script=script,
        sampler=SamplerName.grid,
        pruner=pruner,
        prune_after=1,
        launcher={"max_concurrent": 1},
    )
    by_lr = {row.overrides["diloco.outer_lr"]: row.status.value for row in found.rows}
    assert by_lr == {0.3: "done", 0.2: "done", 0.4: "pruned", 0.9: "pruned"}
    assert len(found.trials(TrialState.PRUNED)) == 2
    assert "seconds is worse than others had" in found.pool.stopped[0][1]
    assert looks[0.4] < 10


def test_marks_that_a_trial_had_no_time_to_tell_are_in_its_result(search):
    def script(task):
        told = [{"at_seconds": float(t), "loss": t / 2} for t in range(1, 10)]
        return done(numbers={"eval_loss": 1.0, "evaluations": told})

    found = search(LR, script=script, pruner=PrunerName.median, trials=1)
    assert found.trials()[0].intermediate_values == {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0}


# -- resuming --------------------------------------------------------------------------------------


def test_a_search_that_is_there_is_gone_on_with_only_when_that_is_wanted(search):
    search(LR, trials=1)
    with pytest.raises(ConfigError, match=r"sweep\.resume=true goes on"):
        search(LR, trials=2)
    with pytest.raises(ConfigError, match="expected the lists"):
        search("diloco.outer_lr=interval(0.1,2)", trials=2, resume=True)


def test_a_search_that_was_interrupted_runs_what_is_missing(search):
    asked = iter([False] * 5 + [True] * 9)
    first = search(LR, asked=lambda: next(asked))
    assert first.statuses().count("interrupted") == 2
    second = search(LR, resume=True)
    assert second.statuses() == ["done"] * 6
    assert len({row.key for row in second.rows}) == 6
    again = [row for row in second.rows if row.attempt == 2]
    assert len(again) == 2
    assert search(LR, resume=True).pool.started == []


def test_a_driver_that_was_killed_leaves_points_that_are_tried_again(search, tmp_path):
    settings = SearchSettings(trials=3)
    space = read_space(OverridesParser.create().parse_overrides([LR]))
    opened = open_study(settings, space, tmp_path, resume=False)
    asked = opened.study.ask(fixed_distributions=space.searched)
    asked.set_user_attr(NUMBER, 0)
    found = search(LR, trials=3, resume=True)
    assert found.rows[0].trial == 0
    assert found.rows[0].overrides["diloco.outer_lr"] == asked.params["diloco.outer_lr"]
    assert found.statuses() == ["done"] * 3
    assert len(found.trials(TrialState.COMPLETE)) == 3


def test_a_row_that_was_written_before_its_driver_was_killed_counts(search, tmp_path):
    first = search(LR, trials=2)
    (tmp_path / "search.journal").unlink()
    second = search(LR, trials=2, launcher={"max_concurrent": 1})
    known = {row.key for row in first.rows} & {row.key for row in second.rows}
    assert all([row.key for row in second.rows].count(key) == 1 for key in known)


def test_what_failed_is_tried_again_and_what_was_refused_is_not(search):
    points = ("diloco.outer_lr=0.2,0.5", "diloco.inner_steps=0,3")
    first = search(*points, script=dies, sampler=SamplerName.grid)
    assert sorted(first.statuses()) == ["invalid", "invalid", "killed", "killed"]
    second = search(*points, sampler=SamplerName.grid, resume=True)
    assert sorted(second.statuses()) == ["done", "done", "invalid", "invalid"]
    assert len(second.pool.started) == 2


def test_more_trials_go_on_from_those_that_are_there(search):
    search(LR, trials=2)
    found = search(LR, trials=5, resume=True)
    assert [row.trial for row in latest(found.rows)] == [0, 1, 2, 3, 4]
    assert len(found.pool.started) == 3


def test_a_database_keeps_a_search_too(search, tmp_path):
    storage = f"sqlite:///{tmp_path / 'search.db'}"
    search(LR, trials=2, storage=storage)
    assert len(search(LR, trials=3, storage=storage, resume=True).pool.started) == 1


def test_a_storage_that_cannot_be_used_is_refused(search):
    with pytest.raises(ConfigError, match=r"search\.storage"):
        search(LR, storage="nonsense://x")
