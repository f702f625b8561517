import random
import statistics

import pytest

from ray_diloco.errors import ConfigError
from ray_diloco.timing.profile import NodeProfile, draw_step

SCATTERED = [
    NodeProfile(seconds_per_step=0.5, jitter="normal", jitter_parameter=0.2),
    NodeProfile(seconds_per_step=0.5, jitter="lognormal", jitter_parameter=0.5),
    NodeProfile(seconds_per_step=0.5, jitter="heavy_tail", jitter_parameter=3.0),
]


def test_a_constant_profile_takes_the_same_time_for_every_step():
    rng = random.Random(1)
    profile = NodeProfile(seconds_per_step=0.25)
    assert [draw_step(profile, rng) for _ in range(3)] == [250_000] * 3


@pytest.mark.parametrize("profile", SCATTERED, ids=lambda p: p.jitter)
def test_jitter_scatters_around_the_mean_and_the_seed_repeats_it(profile):
    draws = [draw_step(profile, rng) for rng in [random.Random(7)] for _ in range(20_000)]
    again = [draw_step(profile, rng) for rng in [random.Random(7)] for _ in range(20_000)]
    assert draws == again
    assert statistics.mean(draws) == pytest.approx(500_000, rel=0.03)
    assert min(draws) >= 1
    assert len(set(draws)) > 1000


def test_a_step_takes_at_least_a_microsecond():
    assert draw_step(NodeProfile(seconds_per_step=1e-12), random.Random(1)) == 1


def test_a_transfer_takes_latency_plus_bytes_over_bandwidth():
    link = NodeProfile(up_mbps=8.0, down_mbps=80.0, latency_ms=20.0).link
    assert link.transfer_time("up", 1_000_000) == 1_020_000
    assert link.transfer_time("down", 1_000_000) == 120_000
    assert link.transfer_time("up", 0) == 20_000
    assert NodeProfile().link.transfer_time("up", 10**12) == 0


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"seconds_per_step": 0.0}, "seconds_per_step"),
        ({"seconds_per_step": float("nan")}, "seconds_per_step"),
        ({"seconds_per_step": float("inf")}, "seconds_per_step"),
        ({"jitter": "gamma"}, "jitter"),
        ({"jitter": "heavy_tail", "jitter_parameter": 1.0}, "jitter_parameter"),
        ({"jitter": "normal", "jitter_parameter": -0.1}, "jitter_parameter"),
        ({"jitter_parameter": 0.5}, "jitter_parameter"),
        ({"up_mbps": 0.0}, "up_mbps"),
        ({"down_mbps": -1.0}, "down_mbps"),
        ({"latency_ms": -1.0}, "latency_ms"),
        ({"latency_ms": 1e307}, "latency_ms"),
        ({"up_mbps": 1e-320}, "up_mbps"),
        ({"shared_down": {"wifi": 1e-320}}, "shared_down"),
        ({"join_at": 1e305}, "join_at"),
        ({"leave_at": 1e305}, "leave_at"),
        ({"crash_at": 1e305}, "crash_at"),
        ({"crash_at": 1.0, "recover_after": 1e305}, "recover_after"),
        ({"away": [[1.0, 1e305]]}, "away"),
        ({"away": [[float("nan"), 2.0]]}, "away"),
        ({"delta_factor": 0.0}, "delta_factor"),
        ({"delta_factor": float("nan")}, "delta_factor"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(changes, field):
    with pytest.raises(ConfigError) as caught:
        NodeProfile(**changes).check("slow")
    assert caught.value.setting == f"cluster.nodes.slow.{field}"


def test_the_default_and_the_scattered_profiles_pass_the_check():
    for profile in [NodeProfile(), *SCATTERED]:
        profile.check("a")
