import pytest
from omegaconf import OmegaConf

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.names import nearest_setting
from ray_diloco.experiment.reading import read_config, to_plain
from ray_diloco.experiment.schema import Config
from ray_diloco.timing.profile import NodeProfile

TOKEN = "hf_abcdefghijklmnopqrstuvwx"


def refusal(given) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        read_config(given)
    return caught.value


def test_nothing_given_is_the_schemas_default():
    assert read_config({}) == Config()


def test_a_configuration_survives_the_way_through_plain_values():
    config = read_config({"cluster": {"nodes": 2, "profiles": [{"seconds_per_step": 2}]}})
    assert config.cluster.profiles == [NodeProfile(seconds_per_step=2.0)]
    assert read_config(to_plain(config)) == config


def test_a_setting_that_does_not_exist_is_named_with_the_nearest_one():
    error = refusal({"diloco": {"inner_step": 5}})
    assert error.setting == "diloco.inner_step"
    assert "did you mean diloco.inner_steps" in str(error)


def test_a_setting_in_the_wrong_group_leads_to_its_own():
    assert "inner.learning_rate" in nearest_setting("model.learning_rate")


def test_a_group_that_does_not_exist_is_named_with_the_nearest_one():
    assert "did you mean cluster" in str(refusal({"clustr": {"nodes": 2}}))


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"diloco": {"inner_steps": "many"}}, "diloco.inner_steps='many': expected a whole number"),
        ({"diloco": {"inner_steps": 1.5}}, "diloco.inner_steps=1.5: expected a whole number"),
        ({"diloco": {"outer_lr": None}}, "diloco.outer_lr=null: expected a number, not null"),
        ({"diloco": {"compat": "maybe"}}, "diloco.compat='maybe': expected true or false"),
        (
            {"hub": {"kind": "embeded"}},
            "hub.kind='embeded': expected one of embedded, huggingface, memory; "
            "did you mean embedded?",
        ),
        ({"hub": {"faults": [3]}}, "hub.faults=[3]: expected names with their values"),
        ({"hub": {"faults": {"lag": "x"}}}, "hub.faults={'lag': 'x'}: expected a number in hub"),
        ({"cluster": {"profiles": 3}}, "cluster.profiles=3: expected a list"),
        ({"cluster": {"profiles": [3]}}, "cluster.profiles=[3]: expected names with their values"),
        (
            {"cluster": {"profiles": [{"jitters": 3}]}},
            "cluster.profiles[0]='jitters': expected one",
        ),
        ({"cluster": {"profiles": [{"up_mbps": "x"}]}}, "cluster.profiles[0].up_mbps='x': expec"),
        ({"cluster": {"overrides": {"n0": 3}}}, "cluster.overrides={'n0': 3}: expected names with"),
        (
            {"cluster": {"overrides": {"n0": {"up_mbs": 3}}}},
            "cluster.overrides.n0='up_mbs': expected one of away, ",
        ),
        (
            {"cluster": {"overrides": {"n0": {"up_mbps": "x"}}}},
            "cluster.overrides.n0.up_mbps='x': expected a number",
        ),
        ({"run": {"name": [1]}}, "run.name=[1]: expected a text"),
        ({"data": {"files": "a.txt"}}, "data.files='a.txt': expected a list"),
        ({"run": 3}, "run=3: expected a group of settings"),
    ],
)
def test_a_wrong_type_is_told_with_its_setting_and_what_was_expected(given, line):
    assert str(refusal(given)).startswith(line)


@pytest.mark.parametrize("place", ["profiles", "overrides"])
def test_whole_numbers_are_numbers_wherever_they_stand(place):
    fields = {"away": [[5, 800]], "up_mbps": 3}
    given = {"profiles": [fields], "overrides": {"n0": fields}}[place]
    cluster = read_config({"cluster": {place: given}}).cluster
    found = cluster.profiles[0] if place == "profiles" else NodeProfile(**cluster.overrides["n0"])
    assert found == NodeProfile(away=[[5.0, 800.0]], up_mbps=3.0)
    assert type(found.away[0][0]) is float


@pytest.mark.parametrize(
    "given",
    [
        {"hub": {"token": TOKEN}},
        {"hub": {"hf_token": "anything"}},
        {"hub": {"endpoint": f"http://user:{TOKEN}@host"}},
        {"data": {"custom": {"words": [TOKEN]}}},
    ],
)
def test_a_token_is_refused_and_not_repeated(given):
    error = refusal(given)
    assert "token" in str(error)
    assert TOKEN not in str(error)
    assert TOKEN not in repr(error)


def test_limits_on_tokens_are_no_tokens():
    assert (
        read_config({"run": {"max_tokens": 5}, "hub": {"repo_id": "me/hf_x"}}).run.max_tokens == 5
    )


def test_interpolations_are_resolved():
    given = OmegaConf.create(
        {"run": {"max_steps": 30}, "inner": {"schedule_steps": "${run.max_steps}"}}
    )
    assert read_config(given).inner.schedule_steps == 30


def test_an_interpolation_that_leads_nowhere_is_refused():
    assert refusal({"run": {"max_steps": "${run.steps}"}}).setting == "run.max_steps"
