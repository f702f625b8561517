import pytest

from ray_diloco.master.weighting import shares_of, sizes_of, staleness_factor
from ray_diloco.protocol.delta_card import DeltaCard
from ray_diloco.protocol.settings import DilocoSettings


def cards(*fields):
    return [
        DeltaCard(node_id=f"n{place}", local_step=10, **{"base_outer_step": 7} | each)
        for place, each in enumerate(fields)
    ]


def shares(settings, *fields, nodes=4):
    return shares_of(settings, cards(*fields), outer_step=7, nodes=nodes)


@pytest.mark.parametrize(("age", "factor"), [(0, 1.0), (1, 2**-0.5), (3, 0.5), (8, 1 / 3)])
def test_poly_falls_with_the_root_of_the_age(age, factor):
    settings = DilocoSettings(staleness="poly")
    assert staleness_factor(settings, age) == pytest.approx(factor, rel=1e-15)


@pytest.mark.parametrize(("age", "factor"), [(0, 1.0), (4, 1.0), (5, 1 / 11), (6, 1 / 21)])
def test_hinge_falls_after_b(age, factor):
    assert staleness_factor(DilocoSettings(staleness="hinge"), age) == pytest.approx(factor)


@pytest.mark.parametrize("rule", ["constant", "drop"])
def test_without_a_rule_age_is_no_matter(rule):
    settings = DilocoSettings(staleness=rule, max_staleness=9)
    assert staleness_factor(settings, 9) == 1.0


def test_staleness_damps_a_lone_delta_too():
    poly = DilocoSettings(staleness="poly")
    assert shares(poly, {"base_outer_step": 4}) == (0.5,)
    assert shares(poly, {}, {"base_outer_step": 4}) == (0.5, 0.25)


def test_tokens_share_out_a_round():
    tokens = DilocoSettings(weighting="tokens")
    assert shares(tokens, {"tokens": 30}, {"tokens": 10}) == (0.75, 0.25)
    assert shares(tokens, {"tokens": 30}) == (1.0,)


def test_the_size_of_the_shard_shares_out_a_round():
    rule = DilocoSettings(weighting="shard_size")
    told = ({"shard_tokens": 900, "tokens": 1}, {"shard_tokens": 100, "tokens": 1})
    assert shares(rule, *told) == pytest.approx((0.9, 0.1))


def test_a_delta_that_says_nothing_counts_as_the_mean_of_the_others():
    found = sizes_of(cards({"tokens": 30}, {}, {"tokens": 10}, {"tokens": 0}), "tokens")
    assert found == (30.0, 20.0, 10.0, 20.0)
    assert sizes_of(cards({}, {}), "tokens") == (1.0, 1.0)


def test_divided_by_nodes_a_lone_delta_moves_the_global_by_its_share():
    rule = DilocoSettings(divide="nodes")
    assert shares(rule, {}) == (0.25,)
    assert shares(rule, {}, {}) == (0.25, 0.25)
    weighted = DilocoSettings(divide="nodes", weighting="tokens")
    assert shares(weighted, {"tokens": 30}, {"tokens": 10}) == (0.375, 0.125)
