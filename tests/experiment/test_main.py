import json
import os
import re
import subprocess
import sys

import pytest

import ray_diloco
from ray_diloco.experiment.main import find_user_modules
from ray_diloco.experiment.schema import Config

TINY = ("debug=default", "run.debug=false", "data=synthetic", "data.synthetic_bytes=20000")


def test_help_fits_a_screen_and_names_the_groups(command):
    code, out, _ = command("--help")
    assert code == 0
    assert len(out.splitlines()) <= 40
    assert max(map(len, out.splitlines())) <= 100
    groups = [name for name in Config.__dataclass_fields__ if name != "run"]
    shared = out.split("\none file each: ")[1].splitlines()[0].split(", ")
    missing = {*groups, "experiment", "debug"} - {*shared, *re.findall(r"^(\w+): ", out, re.M)}
    assert missing == set()


def test_the_version_is_the_packages_own(command):
    assert command("--version") == (0, f"ray-diloco {ray_diloco.__version__}\n", "")


@pytest.mark.parametrize("words", [("--help",), ("-sc", "query=bash"), ("diloco.iner_steps=3",)])
def test_what_starts_no_run_imports_nothing_that_trains(words, tmp_path):
    program = (
        "import sys\n"
        "from ray_diloco.experiment.main import main\n"
        f"sys.argv[1:] = {words}\n"
        "try:\n    main()\n"
        "except SystemExit:\n    pass\n"
        "print(sorted({*sys.modules} & {'torch', 'ray', 'numpy', 'pyarrow', 'plotly', 'aiohttp'}))"
    )
    told = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "COMP_LINE": "ray-diloco diloco.o", "COMP_POINT": "19"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.splitlines()[-1] == "[]"


def test_a_typo_is_one_line_and_leaves_nothing(command, tmp_path):
    code, out, err = command("diloco.iner_steps=3")
    assert (code, out) == (2, "")
    assert err == (
        "ray-diloco: diloco.iner_steps: no such setting; did you mean diloco.inner_steps?\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_value_that_cannot_be_is_one_line_and_leaves_no_run_folder(command, tmp_path):
    code, _, err = command("cluster.node_ids=[a,a,b,c]", f"hydra.run.dir={tmp_path}/run")
    assert code == 2
    assert err == "ray-diloco: cluster.node_ids='a': expected each id once\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("word", ["+hub.token=secret", f"run.name=hf_{'a' * 30}"])
@pytest.mark.parametrize("flag", [(), ("-m",)])
def test_a_token_on_the_command_line_is_refused_and_written_nowhere(command, tmp_path, flag, word):
    code, out, err = command(*flag, word)
    assert (code, out) == (2, "")
    assert "a token is never part of a configuration" in err
    assert word.split("=")[1] not in err
    assert list(tmp_path.iterdir()) == []


def test_a_run_in_this_process_trains_and_leaves_its_folder(command, tmp_path):
    code, out, err = command(*TINY, "hub=memory", f"hydra.run.dir={tmp_path}/run")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].split() == ["run", "folder", str(tmp_path / "run")]
    numbers = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (numbers["status"], numbers["range_sum"]) == ("done", "ok")
    assert numbers["eval_loss"] < numbers["initial_eval_loss"]
    assert numbers["tokens"] == numbers["tokens_merged"]


def test_a_sweep_in_which_nothing_can_run_says_why_of_each_and_starts_nothing(command, tmp_path):
    words = (*TINY, "diloco.inner_steps=0", "run.seed=0,1", f"hydra.sweep.dir={tmp_path}/sweep")
    code, out, err = command("-m", *words)
    assert (code, err) == (2, "ray-diloco: 2 of 2 trials did not end well: 2 invalid\n")
    for number in (0, 1):
        assert f"trial {number} invalid: run.seed={number}: diloco.inner_steps=0: expected" in out
    assert not [path for path in (tmp_path / "sweep").iterdir() if path.is_dir()]
    assert len((tmp_path / "sweep" / "results.jsonl").read_text().splitlines()) == 2


def test_hydras_own_launcher_goes_on_after_a_refused_run_too(command, tmp_path):
    words = (*TINY, "hub=memory", "diloco.inner_steps=0,4", f"hydra.sweep.dir={tmp_path}/sweep")
    code, _, err = command("-m", *words, "hydra/launcher=basic")
    assert code == 2
    assert err == "ray-diloco: diloco.inner_steps=0: expected at least 1\n"
    assert [path.name for path in (tmp_path / "sweep").iterdir() if path.is_dir()] == ["1"]
    assert (tmp_path / "sweep" / "1" / "result.json").exists()


def test_preflight_prints_the_cost_and_runs_nothing(command, tmp_path):
    code, out, err = command(*TINY, "run.preflight=true", f"hydra.run.dir={tmp_path}/run")
    assert (code, err) == (0, "")
    assert out.startswith("commits   about ")
    assert not (tmp_path / "run").exists()


def test_modules_in_the_working_folder_can_be_named_but_hide_no_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    find_user_modules()
    find_user_modules()
    assert sys.path[-1] == str(tmp_path)
    assert sys.path.count(str(tmp_path)) == 1
