from dataclasses import replace

import pytest

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.build import complete
from ray_diloco.experiment.checks import check_config, check_folders, warnings_of


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
        ("cluster.master_seconds=1e305", "cluster.master_seconds"),
        ("cluster.hub_up_mbps=1e-320", "cluster.hub_up_mbps"),
        ("diloco.lease_seconds=1e12", "diloco.lease_seconds"),
        ("hub.retry_deadline=1e305", "hub.retry_deadline"),
        ("hub.fault_seconds=1e305", "hub.fault_seconds"),
        ("ray.start_seconds=1e305", "ray.start_seconds"),
        ("run.max_seconds=1e305", "run.max_seconds"),
        ("run.role=single", "cluster.nodes"),
        ("cluster.nodes=0", "cluster.nodes"),
        ("cluster.node_ids=[a,a]", "cluster.node_ids"),
        ("cluster.node_ids=[a,../b]", "cluster.node_ids"),
        ("cluster.profiles=[]", "cluster.profiles"),
        ("cluster.profiles=[{seconds_per_step: -1}]", "cluster.profiles[0].seconds_per_step"),
        ("ray.object_store_memory=5", "ray.object_store_memory"),
        ("ray.metrics_port=70000", "ray.metrics_port"),
        ("data=custom", "data.custom._target_"),
        ("data.sequence_length=2000000", "data.sequence_length"),
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
    assert error.setting in ("model.layers", "model.width", "model.hidden")
    assert "GiB" in str(error)


def test_a_run_that_ends_before_its_warm_up_is_refused_by_its_own_setting(small):
    short = ("run.max_steps=5", "inner.warmup_steps=5")
    with pytest.raises(ConfigError, match=r"inner.warmup_steps \(5\)") as caught:
        complete(small(*short))
    assert caught.value.setting == "run.max_steps"
    assert complete(small(*short, "inner.schedule=constant")).run.max_steps == 5


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


MODEL = ("model=custom", "model.allow_targets=[unfit]")
DATA = ("data=custom", "data.allow_targets=[unfit]")


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (
            (*MODEL, "model.custom._target_=unfit.Raises"),
            "model.custom._target_='unfit.Raises': raises RuntimeError: no weights here",
        ),
        (
            (*MODEL, "model.custom._target_=unfit.Untrainable"),
            "model.custom._target_='unfit.Untrainable': expected a model with parameters that take",
        ),
        ((*MODEL, "model.custom._target_=unfit.Masked"), "model.custom='mask': expected finite"),
        ((*MODEL, "model.custom._target_=unfit.Lazy"), "model.custom='layer.weight': expected a m"),
        (
            (*MODEL, "model.custom._target_=unfit.Extra"),
            "model.custom='_extra_state': expected tensors only",
        ),
        (
            (*MODEL, "model.custom._target_=unfit.Reserved"),
            "model.custom._target_='unfit.Reserved': __metadata__ is a word of the file",
        ),
        (
            (*MODEL, "model.custom._target_=unfit.Works", "model.custom.dtype=complex128"),
            "model.custom._target_='unfit.Works': weight: torch.complex128 cannot be",
        ),
        (
            (*MODEL, "model.custom._target_=unfit.RaisesLater"),
            "model.custom._target_='unfit.RaisesLater': with the first batch of data=synthetic: "
            "cannot be trained: ValueError: not this batch",
        ),
        (
            (*MODEL, "model.custom._target_=unfit.GivesText"),
            "model.custom._target_='unfit.GivesText': with the first batch of data=synthetic: "
            "cannot be trained: TrainingError: the model returned str",
        ),
        (
            (*MODEL, "model.custom._target_=unfit.Detached"),
            "model.custom._target_='unfit.Detached': with the first batch of data=synthetic: "
            "expected one number with a gradient as the loss",
        ),
        (
            (
                *MODEL,
                "model.custom._target_=unfit.Works",
                "model.custom.dtype=complex64",
                "diloco.compat=true",
            ),
            "diloco.compat=True: expected false for a model with complex entries (weight)",
        ),
        (
            (*DATA, "data.custom._target_=unfit.raises"),
            "data.custom._target_='unfit.raises': raises RuntimeError: not today",
        ),
        (
            (*DATA, "data.custom._target_=unfit.raising_batches"),
            "data.custom._target_='unfit.raising_batches': raises OSError: the disk is gone",
        ),
        (
            (*DATA, "data.custom._target_=unfit.batches", "data.custom.count=0"),
            "data.custom={'_target_': 'unfit.batches', 'count': 0}: expected at least one batch to",
        ),
        (
            (*DATA, "data.custom._target_=unfit.batches", "data.custom.count=9"),
            "data.custom={'_target_': 'unfit.batches', 'count': 9}: gives no batch to node 2 of 2; "
            "expected at least 10, of which the first 8 are held out (data.eval_batches)",
        ),
        (
            (*DATA, "data.custom._target_=unfit.batches", "data.custom.top=256"),
            "data.custom._target_='unfit.batches': with its first batch model=mlp cannot be",
        ),
        (
            ("inner=custom", "inner.allow_targets=[unfit]", "inner.custom._target_=unfit.raises"),
            "inner.custom._target_='unfit.raises': raises RuntimeError: not today",
        ),
        (
            ("inner=custom", "inner.custom._target_=torch.optim.LBFGS"),
            "inner.custom._target_='torch.optim.LBFGS': raises TypeError: ",
        ),
        (
            ("inner=custom", "inner.custom._target_=torch.optim.SparseAdam"),
            "inner.custom._target_='torch.optim.SparseAdam': raises RuntimeError: SparseAdam",
        ),
    ],
)
def test_what_is_wrong_with_a_users_own_part_is_found_before_the_start(refused, overrides, line):
    assert str(refused(*overrides)).startswith(line)


def test_a_users_own_parts_that_work_pass(small):
    chosen = (*MODEL, "model.custom._target_=unfit.Works", "model.custom.dtype=complex64")
    data = (*DATA, "data.custom._target_=unfit.batches", "data.custom.count=10")
    assert check_config(complete(small(*chosen, *data)))


@pytest.mark.parametrize("steps", [0, -3])
def test_a_limit_that_is_none_is_not_blamed_on_the_warm_up(refused, steps):
    words = (f"run.max_steps={steps}", "inner.schedule=cosine", "inner.warmup_steps=20")
    assert str(refused(*words)) == f"run.max_steps={steps}: expected a number above 0, or null"


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (("cluster.nodes=9",), "data.shard='iid': one of 9 shards would have 0 bytes, expected"),
        (
            ("cluster.nodes=9", "data.shard=group"),
            "data.shard='group': 8 groups for 9 nodes (cluster.nodes)",
        ),
        (
            ("data=digits", "model=cnn", "cluster.nodes=2000"),
            "data.shard='iid': one of 2000 shards would be empty; expected fewer nodes",
        ),
        (
            ("data.sequence_length=11000",),
            "data.sequence_length=11000: data=synthetic has 20032 bytes in all; expected at least",
        ),
        (("data.batch_size=10000000000",), "data.batch_size=10000000000: batches of data.batch"),
        (("data.eval_batch_size=10000000000",), "data.eval_batch_size=10000000000: batches of"),
        (("model=gpt", "model.layers=1000000000"), "model.layers=1000000000: 2 nodes need about"),
        (("model=gpt", "model.width=1048576"), "model.width=1048576: 2 nodes need about"),
        (("model=mlp", "model.vocabulary=100000000000"), "model.vocabulary=100000000000: 2 nodes"),
        (("model=gpt", f"model.hidden={10**25}"), "model.name='gpt': expected a size that memory"),
        (("model=gpt", "cluster.nodes=10000", "data.shard=shared"), "cluster.nodes=10000: 10000"),
    ],
)
def test_what_is_too_large_or_too_little_is_named_by_its_setting(refused, overrides, line):
    assert str(refused(*overrides)).startswith(line)


@pytest.mark.parametrize("files", [["empty.txt"], ["empty.txt", "letters.txt"]])
def test_files_without_enough_text_are_blamed_themselves(refused, tmp_path, files):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "letters.txt").write_text("abc")
    paths = ",".join(str(tmp_path / name) for name in files)
    line = str(refused("data=text", f"data.files=[{paths}]"))
    assert "data.files" in line
    assert ("hold no byte" in line) == (len(files) == 1)
    assert ("has 3 bytes in all" in line) == (len(files) == 2)


@pytest.mark.parametrize("place", ["/proc/none/such", "file", "file/below"])
@pytest.mark.parametrize("setting", ["hydra.run.dir", "diloco.state_dir"])
def test_a_folder_that_cannot_be_written_to_is_named(small, tmp_path, setting, place):
    (tmp_path / "file").touch()
    folder = tmp_path / place
    state = f"diloco.state_dir={folder if setting == 'diloco.state_dir' else tmp_path}"
    run_dir = folder if setting == "hydra.run.dir" else tmp_path / "run"
    with pytest.raises(ConfigError, match="expected a folder that can be written to") as caught:
        check_folders(small(state), run_dir)
    assert (caught.value.setting, caught.value.value) == (setting, str(folder))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_folders_that_can_be_written_to_are_left_as_they_were(small, tmp_path):
    check_folders(small(f"diloco.state_dir={tmp_path}/a b/ü"), tmp_path / "run" / "one")
    assert list(tmp_path.iterdir()) == []
