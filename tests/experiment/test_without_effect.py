import pytest

from ray_diloco.experiment.conf_folder import conf_dir
from ray_diloco.experiment.without_effect import without_effect

EXPERIMENTS = sorted(path.stem for path in (conf_dir() / "experiment").glob("*.yaml"))


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (("model=mlp", "model.heads=7"), "model.heads has no effect with model.name=mlp, only"),
        (("data.synthetic_bytes=5000",), "data.synthetic_bytes has no effect with data.name="),
        (("data.shard=shared", "data.block_bytes=1"), "data.block_bytes has no effect with"),
        (("inner.momentum=0.5",), "only with sgd or muon"),
        (("inner.schedule=constant", "inner.schedule_steps=9"), "only with cosine"),
        (("outer=sgd", "diloco.outer_eps=0.2"), "with diloco.outer=sgd, only with adam"),
        (("diloco.staleness_after=5",), "with diloco.staleness=constant, only with hinge"),
        (("diloco.byzantine=2",), "with diloco.aggregation=mean, only with krum"),
        (("diloco.grace_seconds=3",), "with diloco.merge=poll, only with grace"),
        (("model.custom._target_=unfit.Works",), "model.custom has no effect with"),
        (("data.custom._target_=unfit.Works",), "data.custom has no effect with"),
        (("inner.custom._target_=unfit.Works",), "inner.custom has no effect with"),
    ],
)
def test_a_setting_that_the_choice_does_not_use_is_told(configure, overrides, told):
    (line,) = without_effect(configure("data=stdlib", *overrides))
    assert told in line


@pytest.mark.parametrize(
    "overrides",
    [
        ("model=mlp", "model.window=4"),
        ("merge=quorum", "diloco.max_wait=3"),
        ("inner=muon", "inner.momentum=0.5"),
        ("aggregation=krum", "diloco.byzantine=2"),
    ],
)
def test_one_that_it_uses_is_not(configure, overrides):
    assert without_effect(configure(*overrides)) == []


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_no_experiment_sets_one_in_vain(configure, experiment):
    assert without_effect(configure(f"experiment={experiment}")) == []
