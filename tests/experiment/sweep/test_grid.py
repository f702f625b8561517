import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.sweep.grid import combinations


def jobs(*words: str) -> list[list[str]]:
    return combinations(OverridesParser.create().parse_overrides(list(words)))


def test_every_combination_is_a_job_and_the_first_list_varies_slowest():
    assert jobs("a.b=1,2", "c=x", "d.e=range(0,2)") == [
        ["a.b=1", "c=x", "d.e=0"],
        ["a.b=1", "c=x", "d.e=1"],
        ["a.b=2", "c=x", "d.e=0"],
        ["a.b=2", "c=x", "d.e=1"],
    ]


def test_without_a_list_there_is_one_job():
    assert jobs("a.b=1", "+c.d='x y'", "~e") == [["a.b=1", "+c.d='x y'", "~e"]]


def test_the_last_value_of_a_setting_counts():
    assert jobs("a=1,2", "a=3") == [["a=3"]]


def test_a_list_without_an_end_is_refused():
    with pytest.raises(ConfigError, match="a grid has no intervals"):
        jobs("a=interval(0,1)")
