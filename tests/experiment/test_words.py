import pytest

from ray_diloco.errors import UsageError
from ray_diloco.experiment.words import as_meant


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["hub.faults.reset=0.1"], ["++hub.faults.reset=0.1"]),
        (["hub.faults={reset: 0.1}"], ["++hub.faults={reset: 0.1}"]),
        (["cluster.overrides.n0.up_mbps=3"], ["++cluster.overrides.n0.up_mbps=3"]),
        (["model.custom._target_=a.B"], ["++model.custom._target_=a.B"]),
        (["model.config.model_type=gpt2"], ["++model.config.model_type=gpt2"]),
        (
            ["+hub.faults.reset=0.1", "~hub.faults.lag"],
            ["+hub.faults.reset=0.1", "~hub.faults.lag"],
        ),
        (["hub.fault_seconds=2", "--cfg", "job"], ["hub.fault_seconds=2", "--cfg", "job"]),
    ],
)
def test_names_of_the_users_own_need_no_plus(words, meant):
    assert as_meant(words) == meant


@pytest.mark.parametrize("word", ["run.role=single", "cluster=single"])
def test_what_is_single_has_one_node(word):
    assert as_meant([word, "-m"]) == [word, "cluster.nodes=1", "-m"]


@pytest.mark.parametrize("word", ["cluster.nodes=3", "++cluster.nodes=3", "cluster.node_ids=[a]"])
def test_who_says_how_many_nodes_there_are_is_heard(word):
    assert as_meant(["cluster=single", word]) == ["cluster=single", word]


def test_a_word_without_a_name_is_refused():
    with pytest.raises(UsageError, match="'=3': expected group=file"):
        as_meant(["=3"])


@pytest.mark.parametrize("word", ["--experiment", "--experiment=quickstart"])
def test_a_group_takes_no_dashes(word):
    with pytest.raises(UsageError, match="expected no dashes: experiment="):
        as_meant([word, "quickstart"])


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("--cgf", "'--cgf': expected a flag of --hydra-help; did you mean --cfg\\?"),
        ("--resume", "expected no dashes: run.resume=<value>"),
        ("--inner-steps=4", "expected no dashes: diloco.inner_steps=4"),
    ],
)
def test_a_flag_that_is_none_is_answered_with_what_was_meant(word, told):
    with pytest.raises(UsageError, match=told):
        as_meant([word])


@pytest.mark.parametrize("word", ["--multirun", "--multi", "--cfg=job", "--config-dir=x"])
def test_flags_of_hydra_are_left_to_it(word):
    assert as_meant([word]) == [word]


@pytest.mark.parametrize("word", ["experiment=null", "diloco=", "++hub=null"])
def test_a_group_needs_a_file(word):
    with pytest.raises(UsageError, match="expected the name of one of its files"):
        as_meant([word])
