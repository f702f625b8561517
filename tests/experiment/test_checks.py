from dataclasses import replace

import pytest

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.build import complete
from ray_diloco.experiment.checks import check_config, warnings_of


@pytest.fixture
def refused(small):
    def refuse(*overrides: str) -> ConfigError:
        with pytest.raises(ConfigError) as caught:
            check_config(complete(small(*overrides)))
        return caught.value

    return refuse


def test_a_small_run_passes_and_tells_what_it_trains_on(small):
    assert len(check_config(complete(small()))) == 64


@pytest.mark.parametrize(
    ("override", "setting"),
    [
        ("diloco.inner_steps=0", "diloco.inner_steps"),
        ("diloco.install=never", "diloco.install"),
        ("run.max_steps=0", "run.max_steps"),
        ("run.max_steps=null", "run.max_steps"),
        ("run.threads_per_node=0", "run.threads_per_node"),
        ("run.device=tpu9", "run.device"),
        ("run.device=cuda:7", "run.device"),
        ("run.name=a/b", "run.name"),
        ("engine=ray", "hub.kind"),
        ("run.role=worker", "hub.repo_id"),
        ("run.role=standby", "hub.repo_id"),
        ("diloco.lease_seconds=1", "diloco.lease_seconds"),
        ("cluster.master_seconds=-1", "cluster.master_seconds"),
        ("run.role=single", "cluster.nodes"),
        ("cluster.nodes=0", "cluster.nodes"),
        ("cluster.node_ids=[a,a]", "cluster.node_ids"),
        ("cluster.node_ids=[a,../b]", "cluster.node_ids"),
        ("cluster.profiles=[]", "cluster.profiles"),
        ("cluster.profiles=[{seconds_per_step: -1}]", "cluster.profiles[0].seconds_per_step"),
        ("ray.object_store_memory=5", "ray.object_store_memory"),
        ("data=custom", "data.custom._target_"),
        ("data.sequence_length=2000000", "data.held_out_fraction"),
        ("inner.learning_rate=0", "inner.learning_rate"),
        ("hub.repo_id=a/b/c", "hub.repo_id"),
    ],
)
def test_what_cannot_work_is_named_by_its_setting(refused, override, setting):
    assert refused(override).setting == setting


def test_a_missing_data_file_is_named(refused):
    error = refused("data=text", "data.files=[/no/such/file.txt]")
    assert (error.setting, error.value) == ("data.files", "/no/such/file.txt")


def test_a_worker_on_an_embedded_hub_needs_its_address(refused):
    assert refused("run.role=worker", "hub=embedded", "hub.repo_id=a/b").setting == "hub.endpoint"


def test_a_target_off_the_allow_list_is_refused_without_being_called(refused):
    assert refused("model=custom", "+model.custom._target_=os.getcwd").value == "os.getcwd"


def test_a_model_too_large_for_this_machine_is_refused_with_the_numbers(refused):
    error = refused("model=gpt", "model.layers=400", "model.width=16384", "model.hidden=65536")
    assert error.setting == "model.size"
    assert "GiB" in str(error)


def test_cosine_takes_its_length_from_the_run(small):
    assert complete(small()).inner.schedule_steps == 12
    assert complete(small("inner.schedule_steps=9")).inner.schedule_steps == 9


def test_a_run_shorter_than_a_round_is_warned_about(small):
    assert warnings_of(small()) == []
    assert "diloco.inner_steps=500" in warnings_of(small("diloco.inner_steps=500"))[0]


def test_too_many_commits_for_the_hub_are_warned_about(small):
    config = small("hub=huggingface", "cluster=uniform")
    assert "hub.commits_per_hour=100" in warnings_of(config)[0]
    patient = replace(config, hub=replace(config.hub, commits_per_hour=10**6))
    assert warnings_of(patient) == []


def test_a_standby_needs_a_lease_to_watch(refused):
    error = refused("run.role=standby", "hub.repo_id=a/b")
    assert error.setting == "diloco.lease_seconds"
