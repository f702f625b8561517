"""Every outer rule through the whole system."""

import json

import pytest

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.build import complete, config_hash
from ray_diloco.experiment.checks import check_config, warnings_of
from ray_diloco.experiment.run import run

SETTINGS = (
    *("time=virtual", "data.synthetic_bytes=30000", "model.window=4", "model.hidden=32"),
    *("data.eval_batches=2", "data.sequence_length=32", "run.max_steps=12", "inner.warmup_steps=2"),
    *(
        "run.report=false",
        "cluster.nodes=3",
        "diloco.inner_steps=4",
        "diloco.poll_interval=0.5",
        "run.progress=none",
    ),
    *("diloco.reset_inner_optimizer=false", "inner.schedule=constant", "diloco.outer_lr=0.3"),
)
TOGETHER = ("diloco.merge=quorum", "diloco.min_deltas=3", "diloco.max_wait=60.0")
RULES = {
    "sgd": ("diloco.outer=sgd", "diloco.outer_momentum=0.0"),
    "adam": ("diloco.outer=adam",),
    "delayed_nesterov": ("diloco.outer=delayed_nesterov",),
    "delayed_nesterov with c": ("diloco.outer=delayed_nesterov", "diloco.outer_c=0.25"),
    "buffered": ("diloco.outer=buffered", "diloco.outer_arrivals=2", "diloco.staleness=poly"),
    "tokens": ("diloco.weighting=tokens",),
    "shard_size": ("diloco.weighting=shard_size", "data.shard=contiguous"),
    "poly": ("diloco.staleness=poly",),
    "hinge": ("diloco.staleness=hinge", "diloco.staleness_after=0"),
    "drop": ("diloco.staleness=drop", "diloco.max_staleness=8"),
    "divide by nodes": ("diloco.divide=nodes", "diloco.outer_state_every=3"),
    "median": ("diloco.aggregation=median", *TOGETHER),
    "trimmed_mean": ("diloco.aggregation=trimmed_mean", *TOGETHER),
    "krum": ("diloco.aggregation=krum", "diloco.byzantine=0", *TOGETHER),
    "centered_clip": ("diloco.aggregation=centered_clip", *TOGETHER),
    "norm_clip": ("diloco.aggregation=norm_clip", "diloco.weighting=tokens", *TOGETHER),
}


SLOW = "cluster.overrides={n2: {seconds_per_step: 4.0}}"


def numbers_of(small, folder, *overrides):
    run(small(*SETTINGS, *overrides), folder)
    return json.loads((folder / "result.json").read_text())


@pytest.mark.parametrize("rule", RULES)
def test_a_run_by_this_rule_learns_and_accounts_for_every_step(small, tmp_path, rule):
    numbers = numbers_of(small, tmp_path, *RULES[rule])
    assert (numbers["status"], numbers["range_sum"]) == ("done", "ok")
    assert numbers["eval_loss"] < numbers["initial_eval_loss"]
    assert numbers["rejected_deltas"] == 0


def test_deltas_that_are_too_old_are_dropped_and_counted(small, tmp_path):
    rule = ("diloco.staleness=drop", "diloco.max_staleness=0", "diloco.poll_interval=0.1")
    numbers = numbers_of(small, tmp_path, *rule, SLOW)
    assert (numbers["status"], numbers["range_sum"]) == ("done", "ok")
    assert numbers["rejected_deltas"] > 0


@pytest.mark.slow
def test_one_machine_of_four_that_works_against_the_others_moves_the_mean_but_not_the_median(
    small, tmp_path
):
    together = ("diloco.merge=synchronous", "cluster.nodes=4", "run.max_steps=32")
    together = (*together, "diloco.outer_lr=1.0")
    hostile = "cluster.overrides={n3: {delta_factor: -5.0}}"
    found = {
        rule: numbers_of(small, tmp_path / rule, *together, hostile, f"diloco.aggregation={rule}")
        for rule in ("mean", "median", "centered_clip")
    }
    clean = numbers_of(small, tmp_path / "clean", *together)
    assert {numbers["range_sum"] for numbers in found.values()} == {"ok"}
    start, learned = clean["initial_eval_loss"], clean["eval_loss"]
    assert found.pop("mean")["eval_loss"] > start
    for numbers in found.values():
        assert numbers["eval_loss"] < learned + 0.3 * (start - learned)


def test_rounds_with_too_few_deltas_are_counted(small, tmp_path):
    numbers = numbers_of(small, tmp_path, "diloco.aggregation=median", SLOW)
    assert numbers["range_sum"] == "ok"
    assert numbers["fallback_rounds"] > 0


@pytest.mark.parametrize(
    ("overrides", "setting"),
    [
        (("diloco.aggregation=krum",), "diloco.aggregation"),
        (("diloco.aggregation=median", "cluster.nodes=2"), "diloco.aggregation"),
        (("diloco.outer=delayed_nesterov", "diloco.outer_c=0.5"), "diloco.outer_c"),
        (("diloco.outer=buffered", "diloco.outer_arrivals=13"), "diloco.outer_arrivals"),
        (("diloco.outer=sgd", "diloco.outer_momentum=0.9"), "diloco.outer_momentum"),
        (("diloco.weighting=shard_size", "data.name=hf"), "diloco.weighting"),
    ],
)
def test_a_rule_that_can_never_work_is_refused_before_the_start(small, overrides, setting):
    with pytest.raises(ConfigError) as caught:
        check_config(complete(small(*SETTINGS, *overrides)))
    assert caught.value.setting == setting


def test_a_rule_that_hardly_has_deltas_enough_is_said(small):
    def told(*overrides) -> list[str]:
        config = complete(small(*SETTINGS, *overrides))
        return [line for line in warnings_of(config) if "deltas in a round" in line]

    assert len(told("diloco.aggregation=median")) == 1
    assert told("diloco.aggregation=median", *TOGETHER) == told() == []


def test_a_run_goes_on_by_the_rules_that_it_began_with(small):
    plain, adam = small(*SETTINGS), small(*SETTINGS, "diloco.outer=adam", "diloco.outer_lr=0.3")
    assert config_hash(plain) != config_hash(adam)
    named = small(
        *SETTINGS, "diloco.weighting=equal", "diloco.staleness=constant", "diloco.aggregation=mean"
    )
    assert config_hash(plain) == config_hash(named)
