from dataclasses import replace
from pathlib import Path

import pytest

from ray_diloco.cluster.hub_service import HubAccess
from ray_diloco.errors import ConfigError
from ray_diloco.experiment.build import build_plans, complete, config_hash, identify
from ray_diloco.experiment.schema import TimeKind
from ray_diloco.hub.secret import Secret

ACCESS = HubAccess(repo_id="local/run", endpoint="http://hub", token=Secret("seesaw"))


def plans_of(config, tmp_path):
    config = complete(config)
    return build_plans(config, identify(config, tmp_path), ACCESS, tmp_path)


def test_nodes_get_their_shard_profile_and_folder(configure, tmp_path):
    plans = plans_of(configure("cluster.nodes=3", "+cluster.overrides.n2.latency_ms=5"), tmp_path)
    assert [(p.node_id, p.index, p.nodes) for p in plans.nodes] == [
        ("n0", 0, 3),
        ("n1", 1, 3),
        ("n2", 2, 3),
    ]
    speeds = [p.profile.seconds_per_step for p in plans.nodes]
    assert speeds[0] == speeds[2] != speeds[1]
    assert plans.nodes[2].profile.latency_ms == 5
    assert len({p.state_dir for p in plans.nodes}) == 3
    assert "seesaw" not in repr(plans)


def test_the_master_is_a_node_and_a_participant_of_its_own_under_one_id(configure, tmp_path):
    plans = plans_of(configure("cluster.master=n1"), tmp_path)
    assert plans.master is not None
    assert plans.master.master_id == "n1"
    assert plans.master.expected == ("n0", "n1", "n2", "n3")
    assert [p.role for p in plans.nodes] == ["worker", "master", "worker", "worker"]


def test_a_master_that_does_not_train_is_no_node(configure, tmp_path):
    plans = plans_of(configure("cluster.master_trains=false"), tmp_path)
    assert plans.master is not None
    assert plans.master.master_id == "master"
    assert {p.role for p in plans.nodes} == {"worker"}


def test_only_the_nodes_of_this_process_are_planned(configure, tmp_path):
    overrides = ("cluster.node_ids=[a,b,c]", "cluster.nodes=3", "cluster.run_here=[b]")
    config = configure("run.role=worker", *overrides)
    (plan,) = plans_of(config, tmp_path).nodes
    assert (plan.node_id, plan.index, plan.nodes) == ("b", 1, 3)


def test_nodes_run_as_fast_as_they_can_without_emulation(configure, tmp_path):
    plans = plans_of(configure("time=wall", "time.emulate_profile=false"), tmp_path)
    assert {p.profile for p in plans.nodes} == {None}


def test_the_state_folder_can_be_chosen(configure, tmp_path):
    (first, *_) = plans_of(configure(f"diloco.state_dir={tmp_path}/here"), tmp_path).nodes
    assert first.state_dir == tmp_path / "here" / "n0"


@pytest.mark.parametrize(
    "override", ["run.seed=1", "model.layers=2", "data.shard=group", "diloco.outer_lr=0.5"]
)
def test_what_must_not_change_on_resume_changes_the_hash(configure, override):
    assert config_hash(configure(override)) != config_hash(configure())


@pytest.mark.parametrize(
    "override",
    [
        "run.max_steps=9",
        "cluster.nodes=2",
        "engine=inproc",
        "diloco.poll_interval=1",
        "ray=cluster",
    ],
)
def test_what_may_change_on_resume_does_not(configure, override):
    assert config_hash(configure(override)) == config_hash(configure())


def test_a_new_run_gets_an_id_of_its_own_by_its_name(configure):
    config = configure("run.name=study")
    first, second = (identify(config, Path("/nowhere")).run_id for _ in range(2))
    assert first.startswith("study-")
    assert first != second


def test_a_resumed_run_must_be_known(configure, tmp_path):
    config = configure("run.resume=true")
    with pytest.raises(ConfigError, match=r"run\.run_id"):
        identify(config, tmp_path)
    named = replace(config, run=replace(config.run, run_id="old"))
    assert identify(named, tmp_path).run_id == "old"


def test_a_standby_is_a_master_without_nodes_of_the_run_that_it_finds(configure, tmp_path):
    config = configure("run.role=standby", "hub.repo_id=a/b", "diloco.lease_seconds=300")
    plans = plans_of(config, tmp_path)
    assert plans.nodes == ()
    assert plans.master is not None
    assert plans.master.standby
    assert plans.master.run.run_id == ""


@pytest.mark.parametrize(
    "real",
    [
        "ray=cluster",
        "ray.address=ray://head:10001",
        "hub=huggingface",
        "hub.endpoint=http://hub:8000",
        "run.role=worker",
    ],
)
def test_time_is_virtual_unless_something_real_takes_part(configure, real):
    assert complete(configure()).time.kind is TimeKind.virtual
    assert complete(configure(real)).time.kind is TimeKind.wall
    assert complete(configure(real, "time=virtual")).time.kind is TimeKind.virtual


def test_a_simulated_node_leaves_when_its_profile_says(configure, tmp_path):
    plans = plans_of(configure("+cluster.overrides.n1.leave_at=9.5"), tmp_path)
    assert [p.limits.max_seconds for p in plans.nodes] == [None, 9.5, None, None]
    assert plans.master.limits.max_seconds is None


def test_with_dylu_each_node_has_its_own_number_of_inner_steps(configure, tmp_path):
    plans = plans_of(configure("inner_schedule=dylu", "diloco.inner_steps=12"), tmp_path)
    assert [plan.diloco.inner_steps for plan in plans.nodes] == [12, 6, 12, 6]
    assert plans.master is not None
    assert plans.master.diloco.inner_steps == 12


def test_what_nodes_ask_ray_for_makes_no_other_simulated_run(configure):
    asks = "{num_cpus: 2, num_gpus: 1, memory_gb: 1, resources: {tape: 1}, label_selector: {a: b}}"
    plain, asking, slower = (
        identify(complete(configure("cluster.overrides={}", *more)), Path()).run_id
        for more in (
            (),
            (f"+cluster.overrides.n0={asks}",),
            ("+cluster.overrides.n0.latency_ms=1",),
        )
    )
    assert plain == asking
    assert plain != slower


def test_the_master_of_a_joined_ray_evaluates_on_a_gpu_when_it_asks_for_one(configure, tmp_path):
    def device(*words):
        plan = plans_of(configure("run.device=cuda", *words), tmp_path).master
        assert plan is not None
        return plan.device

    joined = ("ray.address=auto", "engine=ray", "time=wall")
    assert device() == "cuda"
    assert device(*joined) == "cpu"
    assert device(*joined, "ray.master_num_gpus=0.5") == "cuda"
