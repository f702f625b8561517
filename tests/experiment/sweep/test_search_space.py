import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.sweep.search_space import Space, read_space


def space_of(*words: str) -> Space:
    return read_space(OverridesParser.create().parse_overrides(list(words)))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("interval(0.1,1)", FloatDistribution(0.1, 1.0)),
        ("interval(1,5)", FloatDistribution(1.0, 5.0)),
        ("int(interval(1,5))", IntDistribution(1, 5)),
        ("tag(log,interval(1e-4,1))", FloatDistribution(1e-4, 1.0, log=True)),
        ("tag(log,int(interval(1,64)))", IntDistribution(1, 64, log=True)),
        ("range(1,10,3)", IntDistribution(1, 7, step=3)),
        ("range(5)", IntDistribution(0, 4)),
        ("range(5,1,-2)", IntDistribution(3, 5, step=2)),
        ("tag(log,range(1,9))", IntDistribution(1, 8, log=True)),
        ("range(0.0,1.0,0.25)", FloatDistribution(0.0, 0.75, step=0.25)),
        ("1,2.5,null", CategoricalDistribution(["1", "2.5", "null"])),
        ("a,'x y',[1,2]", CategoricalDistribution(["a", "'x y'", "[1,2]"])),
        ("true,false", CategoricalDistribution(["True", "False"])),
    ],
)
def test_what_hydra_lists_is_what_optuna_samples_from(given, expected):
    assert space_of(f"group.setting={given}").searched == {"group.setting": expected}


@pytest.mark.parametrize(
    "given", ["interval(2,1)", "range(3,3)", "tag(log,range(0,5))", "tag(log,range(1,9,2))"]
)
def test_what_cannot_be_sampled_is_refused_by_its_name(given):
    with pytest.raises(ConfigError) as caught:
        space_of(f"group.setting={given}")
    assert caught.value.setting == "group.setting"
    assert caught.value.value == given


def test_a_search_without_anything_to_search_is_refused():
    with pytest.raises(ConfigError, match="expected a setting with values"):
        space_of("a.b=1")


def test_a_point_is_words_behind_those_that_all_trials_have():
    space = space_of("a.b=1", "c=x,y", "+d.e='f g'", "~h", "i.j=interval(0,1)")
    words = ["a.b=1", "+d.e='f g'", "~h", "c=x", "i.j=1e-05"]
    assert space.words({"i.j": 1e-05, "c": "x"}) == words
    assert len(OverridesParser.create().parse_overrides(words)) == 5


def test_the_last_value_of_a_setting_counts():
    assert space_of("a=1,2", "b=1,2", "a=3").words({"b": "2"}) == ["a=3", "b=2"]
    assert list(space_of("a=3", "a=1,2").searched) == ["a"]


def test_a_grid_is_every_combination_and_the_first_list_varies_slowest():
    found = space_of("a=x,y", "b=range(1,4,2)", "c=range(0.0,0.5,0.25)").combinations()
    assert found[:3] == [
        {"a": "x", "b": 1, "c": 0.0}, {"a": "x", "b": 1, "c": 0.25}, {"a": "x", "b": 3, "c": 0.0}
    ]  # fmt: skip
    assert len(found) == 8


def test_a_grid_has_no_intervals():
    with pytest.raises(ConfigError, match="sampler=grid"):
        space_of("a=x,y", "b=interval(0,1)").combinations()
