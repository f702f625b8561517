import pytest

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.sweep.search_settings import PrunerName, SamplerName, SearchSettings


@pytest.mark.parametrize(
    ("given", "setting"),
    [
        ({"trials": 0}, "search.trials"),
        ({"seed": -1}, "search.seed"),
        ({"prune_after": -1}, "search.prune_after"),
        ({"objectives": []}, "search.objectives"),
        ({"objectives": ["eval_loss", "eval_loss"]}, "search.objectives"),
        ({"sampler": SamplerName.cmaes, "objectives": ["eval_loss", "tokens"]}, "search.sampler"),
        ({"prune_every": 0.0}, "search.prune_every"),
        ({"prune_every": float("nan")}, "search.prune_every"),
        ({"pruner": PrunerName.median, "objectives": ["run_seconds"]}, "search.pruner"),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_name(given, setting):
    with pytest.raises(ConfigError) as caught:
        SearchSettings(**given).check()
    assert caught.value.setting == setting


def test_trials_of_several_seeds_are_not_ended_early():
    settings = SearchSettings(pruner=PrunerName.median)
    settings.check(seeds=1)
    with pytest.raises(ConfigError, match=r"sweep\.seeds"):
        settings.check(seeds=2)


def test_marks_are_a_tenth_of_the_run_apart_where_nothing_else_is_said():
    assert SearchSettings().mark_seconds(50.0) is None
    assert SearchSettings(pruner=PrunerName.median).mark_seconds(50.0) == 5.0
    assert SearchSettings(pruner=PrunerName.median, prune_every=2.0).mark_seconds(None) == 2.0
    with pytest.raises(ConfigError, match=r"search\.prune_every"):
        SearchSettings(pruner=PrunerName.median).mark_seconds(None)
