import json
import re
from pathlib import Path

import pytest

from ray_diloco.experiment.conf_folder import conf_dir
from ray_diloco.experiment.paper_main import STUDY, main, perform, read_study, tasks_of

README = Path(__file__).parents[2] / "README.md"
STUDIED = read_study(conf_dir() / STUDY)
TINY = (
    *("data=synthetic", "data.synthetic_bytes=20000", "data.sequence_length=16"),
    *("data.batch_size=2", "data.eval_batches=1", "model.layers=1", "model.width=16"),
    *("model.heads=2", "model.kv_heads=1", "model.hidden=16", "run.max_steps=24"),
)


@pytest.mark.parametrize("name", STUDIED.runs)
def test_every_run_of_the_study_composes_and_can_work(name, configure):
    config = configure(*STUDIED.runs[name])
    config.diloco.check()
    config.cluster.check()
    free = name.startswith(("install", "grace", "half"))
    assert config.diloco.nodes_wait is not free
    assert config.data.name == "shakespeare"


def test_the_runs_are_what_their_names_say(configure):
    by_name = {name: configure(*words) for name, words in STUDIED.runs.items()}
    plain = by_name["synchronous"].diloco
    assert (plain.merge, plain.outer_lr, plain.outer_momentum) == ("synchronous", 0.7, 0.9)
    grace = by_name["delayed nesterov, dylu, grace"].diloco
    assert (grace.outer, grace.inner_schedule, grace.merge) == ("delayed_nesterov", "dylu", "grace")
    free = by_name["asynchronous"]
    assert (free.run.max_steps, free.diloco.merge, free.diloco.outer) == (None, "poll", "nesterov")
    batch = free.data.batch_size * free.data.sequence_length
    assert free.run.max_tokens == by_name["synchronous"].run.max_steps * 4 * batch
    for lr in ("0.3", "0.7", "1.0", "1.5"):
        for momentum in ("0", "0.5", "0.9"):
            name = (
                "synchronous"
                if (lr, momentum) == ("0.7", "0.9")
                else f"lr {lr} momentum {momentum}"
            )
            diloco = by_name[name].diloco
            assert (diloco.outer_lr, diloco.outer_momentum) == (float(lr), float(momentum))


def test_a_gate_that_names_no_run_is_refused(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text("warm_up: []\nruns: {a: []}\ngates: [{says: x, runs: [b]}]\n")
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path / "out"), "--study", str(path)])
    assert ended.value.code == 2


def test_a_typo_is_told_before_anything_runs(tmp_path, capsys):
    path = tmp_path / "study.yaml"
    path.write_text("warm_up: []\nruns: {fine: [], poor: [diloco.outer_lrr=1]}\ngates: []\n")
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path / "out"), "--study", str(path)])
    assert ended.value.code == 2
    assert re.search("run 'poor': .*outer_lrr", capsys.readouterr().err)
    assert list((tmp_path / "out").iterdir()) == []


def test_runs_start_from_the_warm_up_of_their_seed(tmp_path):
    warm_ups, runs = tasks_of(STUDIED, tmp_path, seeds=(0, 1), changes=("a.b=1",))
    assert [task.seed for task in warm_ups] == [0, 1]
    assert len({task.folder for task in (*warm_ups, *runs)}) == 2 + 2 * len(STUDIED.runs)
    for task in runs:
        weights = warm_ups[task.seed].folder / "model.safetensors"
        assert f"model.weights={weights}" in task.overrides
        assert {f"run.seed={task.seed}", "a.b=1"} <= set(task.overrides)


@pytest.mark.slow
def test_the_command_runs_what_was_chosen_once_and_writes_the_table(tmp_path, capsys):
    chosen = ["synchronous", "delayed nesterov, dylu, grace"]
    words = [str(tmp_path), *TINY, "--seeds", "0", "--jobs", "1", "--only", *chosen]
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
    told = capsys.readouterr().out
    assert told.count("seed 0: done") == 1 + 2  # the warm-up and each run, once
    table = (tmp_path / "table.md").read_text()
    assert "| delayed nesterov, dylu, grace |" in table
    assert "not run" in table
    found = json.loads((tmp_path / "synchronous-seed0" / "result.json").read_text())
    assert found["initial_eval_loss"] < 5.54  # of the warm-up, not of drawn weights


@pytest.mark.slow
def test_a_run_that_was_ended_early_is_run_again_from_its_start(tmp_path):
    (warm_up, *_), _ = tasks_of(STUDIED, tmp_path, seeds=(0,), changes=TINY)
    warm_up.folder.mkdir(parents=True)
    (warm_up.folder / "events.jsonl").write_text("{}\n")
    (warm_up.folder / "result.json").write_text('{"status": "stopped", "eval_loss": 9.0}')
    for _ in range(2):
        rows = perform([warm_up], jobs=1)
        assert rows[warm_up.name][0]["status"] == "done"
        assert rows[warm_up.name][0]["eval_loss"] < 6


@pytest.mark.slow
def test_a_run_that_cannot_be_run_says_why_and_leaves_the_others(tmp_path):
    _, (task, *_rest) = tasks_of(STUDIED, tmp_path, seeds=(0,), changes=TINY)
    rows = perform([task], jobs=1)
    assert "model.weights" in rows[task.name][0]["status"]


def verdicts(text: str) -> dict[str, str]:
    """By gate, of a table in Markdown."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    says = {gate.says for gate in STUDIED.gates}
    return {cells[0]: cells[-1] for cells in lines if cells[0] in says}


def test_the_readme_tells_of_every_gate():
    told = verdicts(README.read_text(encoding="utf-8"))
    assert list(told) == [gate.says for gate in STUDIED.gates]
    assert set(told.values()) <= {"pass", "fail"}


@pytest.mark.paper
def test_the_published_orderings_hold_or_fail_as_the_readme_says(tmp_path):
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path)])
    assert ended.value.code == 0
    found = verdicts((tmp_path / "table.md").read_text())
    assert found == verdicts(README.read_text(encoding="utf-8"))
