import pytest

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.schema import EngineName, ProgressKind, TimeKind
from ray_diloco.experiment.sweep.settings import SweepSettings
from ray_diloco.experiment.sweep.trials import Refused, Trial, repeat


def test_a_trial_runs_in_one_process_in_virtual_time_unless_the_engine_is_chosen(proposed):
    trial = proposed("diloco.outer_lr=0.3")
    assert isinstance(trial, Trial)
    assert trial.config.engine.name is EngineName.inproc
    assert trial.config.time.kind is TimeKind.virtual
    assert trial.config.run.progress is ProgressKind.none
    chosen = proposed("engine=ray")
    assert isinstance(chosen, Trial)
    assert chosen.config.engine.name is EngineName.ray
    assert proposed(engine="ray").config.engine.name is EngineName.ray


def test_a_trial_on_a_ray_cluster_keeps_its_virtual_time(proposed):
    assert proposed("ray.address=auto").config.time.kind is TimeKind.virtual
    assert proposed("ray.address=auto", "engine=ray").config.time.kind is TimeKind.wall


def test_its_folder_follows_its_number(proposed):
    assert proposed(number=7).folder == "7"


@pytest.mark.parametrize(
    "word",
    ["run.log_level=DEBUG", "sweep.shown=3", "ray.num_cpus=3", "hub.port=9000", "run.debug=false",
     "diloco.state_dir=/somewhere", "ray.address=auto", "time=virtual", "tracking=wandb"],
)  # fmt: skip
def test_where_a_trial_runs_does_not_change_its_key(proposed, word):
    assert proposed(word).key == proposed().key


@pytest.mark.parametrize(
    "word",
    ["run.seed=1", "diloco.outer_lr=0.3", "cluster.nodes=3", "run.max_steps=13", "hub=memory"],
)
def test_what_it_runs_does(proposed, word):
    assert proposed(word).key != proposed().key


def test_equal_configurations_have_one_key_however_they_were_written(proposed):
    assert proposed("diloco.outer_lr=0.50").key == proposed("diloco.outer_lr=0.5").key


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("diloco.inner_steps=0", "diloco.inner_steps=0: expected at least 1"),
        ("diloco.inner_stepz=4", "did you mean diloco.inner_steps?"),
        ("cluster=unifrom", "did you mean uniform?"),
        ("diloco.outer_lr=fast", "expected a number"),
        ("run.resume=true", "expected none in a sweep"),
        ("run.preflight=true", "expected none in a sweep"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused_in_one_line(proposed, word, reason):
    refused = proposed(word, number=5)
    assert isinstance(refused, Refused)
    assert refused.number == 5
    assert reason in refused.error
    assert refused.overrides[word.split("=")[0]] is not None


def test_each_point_is_repeated_with_each_seed():
    settings = SweepSettings(seeds=2)
    assert repeat([["a.b=1"], ["a.b=2"]], settings) == [
        ["a.b=1", "run.seed=0"],
        ["a.b=1", "run.seed=1"],
        ["a.b=2", "run.seed=0"],
        ["a.b=2", "run.seed=1"],
    ]
    assert repeat([["run.seed=4"]], SweepSettings()) == [["run.seed=4"]]


def test_seeds_are_not_swept_twice():
    with pytest.raises(ConfigError, match=r"sweep\.seeds=2: expected 1 where run\.seed is given"):
        repeat([["run.seed=4"]], SweepSettings(seeds=2))
