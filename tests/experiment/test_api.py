import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import ray_diloco
from ray_diloco.errors import ConfigError, UsageError
from ray_diloco.experiment.result import Result

SMALL = ("debug=default", "data=synthetic", "data.synthetic_bytes=20000", "hub=memory")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Result:
    folder = tmp_path_factory.mktemp("runs") / "one"
    return ray_diloco.run([*SMALL, "run.max_steps=4", "diloco.inner_steps=2"], folder=folder)


def test_importing_the_package_imports_nothing_heavy():
    heavy = "[name for name in ('torch', 'ray', 'hydra', 'pyarrow') if name in sys.modules]"
    told = subprocess.run(
        [sys.executable, "-c", f"import sys, ray_diloco; dir(ray_diloco); print({heavy})"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "[]\n"


def test_every_public_name_is_there_and_listed():
    assert [name for name in ray_diloco.__all__ if not hasattr(ray_diloco, name)] == []
    assert set(ray_diloco.__all__) <= set(dir(ray_diloco))
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        _ = ray_diloco.runn


def test_a_run_of_a_program_leaves_what_the_command_leaves(finished):
    assert (finished.status, finished.numbers["range_sum"]) == ("done", "ok")
    assert json.loads((finished.folder / "result.json").read_text()) == finished.numbers
    assert finished.numbers["overrides"][0] == "debug=default"


def test_a_table_holds_one_event_and_only_its_columns(finished):
    evaluations = finished.table("evaluation")
    assert evaluations["loss"].to_pylist()[-1] == finished.eval_loss
    assert "nonce" not in evaluations.column_names
    assert finished.table().num_rows > evaluations.num_rows
    assert list(finished.frame("merged")["participant"].unique()) != []


def test_an_event_that_does_not_exist_is_answered_with_those_that_do(finished):
    with pytest.raises(ConfigError, match=r"expected one of .*evaluation"):
        finished.table("evalation")


def test_results_are_loaded_from_a_run_folder_and_from_the_folder_above(finished):
    (alone,) = ray_diloco.load_results(finished.folder)
    (among,) = ray_diloco.load_results(finished.folder.parent)
    assert alone == among == finished


def test_trials_are_loaded_in_the_order_of_their_numbers(tmp_path):
    for name in ("0", "10", "9"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text('{"status": "done"}')
    assert [each.folder.name for each in ray_diloco.load_results(tmp_path)] == ["0", "9", "10"]


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(ConfigError, match="expected the folder of a run that has ended"):
        ray_diloco.load_results(tmp_path)


def test_a_configuration_can_be_changed_before_it_is_run(tmp_path):
    config = ray_diloco.configure([*SMALL, "run.max_steps=4", "diloco.inner_steps=2"])
    assert config.run.max_steps == 4
    assert ray_diloco.run(config, folder=tmp_path / "run").status == "done"


@pytest.mark.parametrize(
    ("overrides", "answer"),
    [
        (["run.max_step=3"], "did you mean run.max_steps"),
        (["clster=flaky"], "did you mean cluster"),
        ("run.max_steps=3", "expected a list of words"),
        (["run.preflight=true"], "for the command line"),
    ],
)
def test_wrong_overrides_are_answered_before_anything_starts(tmp_path, overrides, answer):
    with pytest.raises(UsageError, match=answer):
        ray_diloco.run(overrides, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_shows_the_figures_of_its_report(finished):
    figures = finished.figures()
    assert list(figures) == ["loss", "timeline", "staleness", "utilisation", "traffic"]
    assert list(figures["loss"].data[0].y)[-1] == round(finished.eval_loss or 0, 5)


def test_words_may_name_the_run_folder(tmp_path):
    words = [*SMALL, "run.max_steps=4", "diloco.inner_steps=2", f"hydra.run.dir={tmp_path}/named"]
    assert ray_diloco.run(words).folder == tmp_path / "named"


def test_two_threads_may_configure_at_once():
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda seed: ray_diloco.configure([f"run.seed={seed}"]), range(8)))
    assert [config.run.seed for config in found] == list(range(8))
