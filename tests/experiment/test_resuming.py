import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.conf_folder import conf_dir
from ray_diloco.experiment.reading import read_config, to_yaml
from ray_diloco.experiment.resuming import continued, folder_of, run_folder


def composed(*overrides):
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return compose("config", list(overrides))


@pytest.fixture
def folder(tmp_path):
    """A run's folder, with settings that are nobody's defaults."""
    earlier = composed("run.max_steps=60", "run.seed=7", "model=mlp", "diloco.inner_steps=11")
    earlier.run.run_id = "run-abc"
    (tmp_path / "config.yaml").write_text(to_yaml(read_config(earlier)))
    return tmp_path


def resumed(folder, *words):
    words = (f"run.resume={folder}", *words)
    return read_config(continued(composed(*words), words))


def test_the_folder_says_what_the_run_is(folder):
    config = resumed(folder)
    assert (config.run.run_id, config.run.seed, config.run.max_steps) == ("run-abc", 7, 60)
    assert (config.model.name, config.diloco.inner_steps) == ("mlp", 11)
    assert config.run.resumes


def test_a_run_goes_on_in_its_own_folder(folder, tmp_path):
    assert resumed(folder, f"hydra.run.dir={folder}").run.resumes
    with pytest.raises(ConfigError, match="where the run is that goes on") as caught:
        resumed(folder, f"hydra.run.dir={tmp_path / 'another'}")
    assert caught.value.setting == "hydra.run.dir"


def test_the_command_line_changes_what_it_names_and_nothing_else(folder):
    config = resumed(folder, "run.max_steps=90", "+cluster.overrides.n0.latency_ms=5")
    assert (config.run.max_steps, config.diloco.inner_steps) == (90, 11)
    assert config.cluster.overrides == {"n0": {"latency_ms": 5}}


def test_a_whole_group_can_be_chosen(folder):
    config = resumed(folder, "engine=inproc", "time=wall")
    assert (config.engine.name, config.time.kind) == ("inproc", "wall")
    assert config.model.name == "mlp"


@pytest.mark.parametrize("word", ["run.seed=1", "run.run_id=other", "experiment=quickstart"])
def test_what_makes_the_run_cannot_be_changed(word, folder):
    with pytest.raises(ConfigError, match="on resume may change: ") as caught:
        resumed(folder, word)
    assert f"{caught.value.setting}={caught.value.value}" == word


def test_a_folder_without_a_run_is_no_run(tmp_path):
    with pytest.raises(ConfigError, match="expected the folder of a run"):
        resumed(tmp_path)


def test_without_a_folder_the_composed_configuration_stays():
    plain = composed("run.resume=true")
    assert continued(plain, ["run.resume=true"]) is plain


@pytest.mark.parametrize("value", [None, True, "true", "False", "null"])
def test_words_are_no_folders(value):
    assert folder_of(value) is None
    assert run_folder(value, "outputs/new") == "outputs/new"


def test_a_run_that_goes_on_writes_into_its_folder():
    assert run_folder("outputs/old", "outputs/new") == "outputs/old"
    OmegaConf.register_new_resolver("run_folder", run_folder, replace=True)
    assert composed("run.resume=outputs/old").run.resume == "outputs/old"
