import pytest

from ray_diloco.errors import ConfigError
from ray_diloco.protocol.rules import check_for_nodes, deltas_needed
from ray_diloco.protocol.settings import DilocoSettings

DELAYED = {"outer": "delayed_nesterov"}


@pytest.mark.parametrize(
    "good",
    [
        {"outer": "sgd", "outer_momentum": 0.0},
        {"outer": "adam", "outer_beta2": 0.0, "outer_eps": 1e-8},
        {"outer": "delayed_nesterov", "outer_arrivals": 4, "outer_c": 0.25},
        {"outer": "delayed_nesterov", "staleness": "poly"},
        {"outer": "buffered", "outer_arrivals": 10, "weighting": "tokens", "staleness": "hinge"},
        {"staleness": "drop", "max_staleness": 0},
        {"weighting": "shard_size", "divide": "nodes", "aggregation": "norm_clip"},
        {"aggregation": "median", "staleness": "drop", "max_staleness": 3, "divide": "nodes"},
        {"aggregation": "krum", "byzantine": 0, "max_deltas_per_round": 3},
        {"aggregation": "trimmed_mean", "trim_share": 0.49},
        {"weighting": "tokens", "compat": True},
    ],
)
def test_rules_that_go_together_are_accepted(good):
    DilocoSettings(**good).check()


@pytest.mark.parametrize(
    ("setting", "given"),
    [
        ("outer", {"outer": "lion"}),
        ("weighting", {"weighting": "loss"}),
        ("staleness", {"staleness": "linear"}),
        ("divide", {"divide": "weights"}),
        ("aggregation", {"aggregation": "mode"}),
        ("outer_momentum", {"outer": "sgd"}),
        ("outer_arrivals", {"outer_arrivals": 4}),
        ("outer_arrivals", {"outer": "buffered", "outer_arrivals": 0}),
        ("outer_c", {"outer_c": 0.1}),
        ("outer_c", DELAYED | {"outer_c": -0.1}),
        ("outer_c", DELAYED | {"outer_c": 0.3, "outer_arrivals": 4}),
        ("outer_c", {"outer": "buffered", "outer_c": 0.1}),
        ("outer_beta2", {"outer": "adam", "outer_beta2": 1.0}),
        ("outer_eps", {"outer": "adam", "outer_eps": 0.0}),
        ("aggregation", DELAYED | {"aggregation": "median"}),
        ("aggregation", {"outer": "buffered", "aggregation": "norm_clip"}),
        ("divide", DELAYED | {"divide": "nodes"}),
        ("weighting", DELAYED | {"weighting": "tokens"}),
        ("max_staleness", {"staleness": "drop"}),
        ("staleness_exponent", {"staleness_exponent": -1.0}),
        ("staleness_slope", {"staleness_slope": float("nan")}),
        ("staleness_after", {"staleness_after": -1}),
        ("weighting", {"aggregation": "krum", "weighting": "tokens"}),
        ("staleness", {"aggregation": "median", "staleness": "poly"}),
        ("staleness", {"aggregation": "centered_clip", "staleness": "hinge"}),
        ("max_deltas_per_round", {"aggregation": "krum", "max_deltas_per_round": 4}),
        ("trim_share", {"trim_share": 0.5}),
        ("trim_share", {"trim_share": 0.0}),
        ("byzantine", {"byzantine": -1}),
        ("clip_radius", {"clip_radius": 0.0}),
        ("clip_radius", {"clip_radius": float("inf")}),
        ("clip_iterations", {"clip_iterations": 0}),
    ],
)
def test_rules_that_do_not_are_refused_with_the_setting(setting, given):
    with pytest.raises(ConfigError) as caught:
        DilocoSettings(**given).check()
    assert caught.value.setting == f"diloco.{setting}"
    assert "expected" in str(caught.value)


@pytest.mark.parametrize(
    ("given", "needed"),
    [
        ({}, 1),
        ({"aggregation": "median"}, 3),
        ({"aggregation": "krum"}, 5),
        ({"aggregation": "krum", "byzantine": 2}, 7),
        ({"aggregation": "norm_clip"}, 3),
        ({"aggregation": "norm_clip", "clip_radius": 1.0}, 1),
    ],
)
def test_a_rule_needs_so_many_deltas_and_so_many_nodes(given, needed):
    settings = DilocoSettings(**given)
    assert deltas_needed(settings) == needed
    check_for_nodes(settings, needed)
    if needed > 1:
        with pytest.raises(ConfigError, match=f"needs {needed} deltas in a round"):
            check_for_nodes(settings, needed - 1)


def test_c_is_held_against_the_number_of_nodes():
    settings = DilocoSettings(**DELAYED, outer_c=0.25)
    check_for_nodes(settings, 4)
    with pytest.raises(ConfigError, match="N=5"):
        check_for_nodes(settings, 5)
