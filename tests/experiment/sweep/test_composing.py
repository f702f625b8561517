import pytest
from hydra.errors import HydraException
from omegaconf import OmegaConf

from ray_diloco.experiment.sweep.composing import Composer, choices_of, settings_of


class CountingLoader:
    """Hydra's, and how often it was asked."""

    def __init__(self, loader) -> None:
        self._loader = loader
        self.asked = 0

    def load_sweep_config(self, master, words):
        self.asked += 1
        return self._loader.load_sweep_config(master, words)


@pytest.fixture
def counted(loader, composer) -> tuple[Composer, CountingLoader]:
    counting = CountingLoader(loader)
    return Composer(counting, composer._master), counting


@pytest.mark.parametrize(
    "words",
    [
        ("diloco.outer_lr=0.3", "cluster=flaky", "run.seed=3"),
        ("run.seed=1", "experiment=quickstart", "run.max_steps=7", "run.seed=2"),
        ("cluster.node_ids=[a,b]", "data.files=[]", "model=mlp"),
        ("+cluster.overrides.n1.seconds_per_step=2.0", "diloco.outer_lr=0.5"),
        ("diloco.outer_lr=null", "run.name='a b'"),
    ],
)
def test_a_trial_is_composed_as_hydra_composes_it(loader, composer, words):
    ours = composer.compose(composer.parse(words))
    theirs = loader.load_sweep_config(composer._master, list(words))
    for config in (ours, theirs):
        OmegaConf.set_struct(config, False)
        del config["hydra"]
    assert OmegaConf.to_container(ours) == OmegaConf.to_container(theirs)


def test_trials_that_differ_in_single_settings_are_composed_once(counted):
    composer, counting = counted
    for rate in (0.1, 0.2, 0.3):
        config = composer.compose(composer.parse(["cluster=flaky", f"diloco.outer_lr={rate}"]))
        assert config.diloco.outer_lr == rate
    assert counting.asked == 1


def test_a_setting_that_does_not_exist_is_refused_in_hydras_words(composer):
    with pytest.raises(HydraException, match=r"Could not override 'diloco\.outer_lrr'"):
        composer.compose(composer.parse(["diloco.outer_lrr=1"]))


def test_chosen_files_and_settings_are_told_with_their_values(composer):
    overrides = composer.parse(
        ["cluster=flaky", "diloco.outer_lr=0.3", "+model.custom.width=4", "sweep.resume=true",
         "run.max_tokens=null", "cluster.node_ids=[a,b]", "hydra.sweep.subdir=x"]
    )  # fmt: skip
    assert settings_of(overrides) == {
        "cluster": "flaky",
        "diloco.outer_lr": 0.3,
        "model.custom.width": 4,
        "run.max_tokens": None,
        "cluster.node_ids": ["a", "b"],
    }
    choices = choices_of(composer.compose(composer.parse(["cluster=flaky"])))
    assert (choices["cluster"], choices["engine"]) == ("flaky", "ray")
    assert not any("/" in group for group in choices)
