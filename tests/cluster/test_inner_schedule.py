import pytest

from ray_diloco.cluster.inner_schedule import dylu, inner_steps_of
from ray_diloco.cluster.settings import ClusterSettings
from ray_diloco.protocol.settings import DilocoSettings
from ray_diloco.timing.profile import NodeProfile


def steps(inner_steps: int, *seconds: float, schedule: str = "dylu") -> list[int]:
    diloco = DilocoSettings(inner_steps=inner_steps, inner_schedule=schedule)
    profiles = [NodeProfile(seconds_per_step=each) for each in seconds]
    cluster = ClusterSettings(nodes=len(profiles), profiles=profiles)
    found = inner_steps_of(diloco, cluster)
    assert list(found) == [f"n{number}" for number in range(len(profiles))]
    return list(found.values())


def test_fixed_gives_every_node_the_same_number():
    assert steps(12, 1.0, 1.3, 2.0, 3.0, schedule="fixed") == [12] * 4


def test_dylu_gives_each_node_its_share_of_whole_steps():
    assert steps(12, 1.0, 1.3, 2.0, 3.0) == [12, 9, 6, 4]
    assert steps(12, 3.0, 2.0, 1.0) == [4, 6, 12]


@pytest.mark.parametrize("unit", [0.1, 0.15, 0.7, 1e-3])
def test_a_share_that_is_whole_is_not_rounded_down(unit):
    assert dylu(12, seconds=3 * unit, fastest=unit) == 4
    assert dylu(12, seconds=2 * unit, fastest=unit) == 6


def test_dylu_gives_a_very_slow_node_one_step():
    assert steps(4, 0.1, 1.0) == [4, 1]


def test_overrides_count_as_the_node_s_own_speed():
    cluster = ClusterSettings(nodes=2, overrides={"n1": {"seconds_per_step": 4.0}})
    diloco = DilocoSettings(inner_steps=8, inner_schedule="dylu")
    assert inner_steps_of(diloco, cluster) == {"n0": 8, "n1": 2}
