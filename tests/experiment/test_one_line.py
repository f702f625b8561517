"""What the commands that look at folders say of one that holds nothing, or something broken."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from experiment.report.recorded import write_run
from safetensors.torch import save_file

from ray_diloco.experiment import (
    calibrate_main,
    export_main,
    node_main,
    paper_main,
    report_main,
    status_main,
)
from ray_diloco.experiment.summary import NEEDED
from ray_diloco.experiment.sweep import results_main
from ray_diloco.experiment.sweep.rows import Row, Status
from ray_diloco.protocol.run import NodeStatus, RunLimits

Call = Callable[..., tuple[int, str]]
NOBODY = 65534
EXPORT = "ray-diloco-export"

COMMANDS = {
    "ray-diloco-report": report_main.main,
    "ray-diloco-export": export_main.main,
    "ray-diloco-results": results_main.main,
    "ray-diloco-status": status_main.status,
    "ray-diloco-stop": status_main.stop,
    "ray-diloco-calibrate": calibrate_main.main,
    "ray-diloco-node": node_main.main,
    "ray-diloco-paper": paper_main.main,
}
READS = {
    "ray-diloco-report": ("config.yaml", "events.jsonl", "result.json"),
    "ray-diloco-export": ("config.yaml", "events.jsonl", "result.json", "model.safetensors"),
    "ray-diloco-results": ("results.jsonl",),
    "ray-diloco-status": ("status.json", "result.json"),
    "ray-diloco-stop": ("status.json",),
}
BROKEN = {
    "cut short": b'{"a": [1, 2,\n',
    "of another kind": b"[1, 2]\n",
    "without what it should hold": b"{}\n",
    "no text": b"\xff\xfe\x00\x01\n",
    "of nothing": b"\n",
}
PAIRS = [(command, name) for command, names in READS.items() for name in names]


@pytest.fixture
def call(monkeypatch, capsys) -> Call:
    """Call a command; gives its exit code and what it said to the error stream."""

    def called(command: str, *words: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", [command, *map(str, words)])
        code = 0
        try:
            COMMANDS[command]()
        except SystemExit as ended:
            code = int(ended.code or 0)
        return code, capsys.readouterr().err

    return called


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a run that has ended, and of a sweep: whole."""
    made = write_run(tmp_path / "run", result=ENDED)
    save_file({"weight": torch.ones(2)}, made / "model.safetensors")
    row = Row(trial=0, key="k", attempt=1, status=Status.done)
    (made / "results.jsonl").write_text(json.dumps(asdict(row)) + "\n")
    status = {
        "running": False,
        "pid": 1,
        "host": "here",
        "updated_at": "2030-01-01",
        "virtual": True,
        "limits": asdict(RunLimits(max_steps=1)),
        "nodes": [asdict(NodeStatus(node_id="n0"))],
        "master": None,
        "notes": [],
    }
    (made / "status.json").write_text(json.dumps(status))
    return made


ENDED = {
    **{name: {str: "done", int: 0, dict: {}}.get(kind) for name, kind in NEEDED.items()},
    **dict.fromkeys(("wall_seconds", "wall_start_seconds", "run_seconds"), 1.0),
    "range_sum": "ok",
    "sessions": [],
    "crashes": {},
    "commits_per_hour": None,
}


@pytest.fixture
def as_somebody_else(folder: Path) -> Iterator[None]:
    """The folder cannot be looked into; root has to become somebody for that."""
    was_root = os.geteuid() == 0
    folder.chmod(0)
    if was_root:
        os.seteuid(NOBODY)
    yield
    if was_root:
        os.seteuid(0)
    folder.chmod(0o700)


def words_of(command: str, folder: Path, tmp_path: Path) -> list[object]:
    match command:
        case "ray-diloco-report":
            return [folder, "--output", tmp_path / "report.html"]
        case "ray-diloco-export":
            return [folder, tmp_path / "exported"]
        case _:
            return [folder]


def assert_one_clear_line(command: str, code: int, err: str, place: Path) -> None:
    assert code == 2, err
    assert err.count("\n") == 1, err
    assert err.startswith(f"{command}: ")
    assert str(place) in err
    assert "expected" in err


@pytest.mark.parametrize("command", READS)
def test_a_whole_folder_is_taken(call, folder, tmp_path, command):
    (folder / "results.jsonl").rename(folder / "apart")  # else the report is the sweep's
    if command == "ray-diloco-results":
        (folder / "apart").rename(folder / "results.jsonl")
    assert call(command, *words_of(command, folder, tmp_path)) == (0, "")


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize(("command", "name"), PAIRS)
def test_a_broken_file_is_named(call, folder, tmp_path, command, name, how):
    if command != "ray-diloco-results":
        (folder / "results.jsonl").unlink()
    (folder / name).write_bytes(BROKEN[how])
    code, err = call(command, *words_of(command, folder, tmp_path))
    assert_one_clear_line(command, code, err, folder / name)
    assert not (tmp_path / "exported").exists()
    assert not (folder / "stop").exists()


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_table_of_a_sweep_is_named_by_its_report(call, folder, tmp_path, how):
    (folder / "results.jsonl").write_bytes(BROKEN[how])
    code, err = call("ray-diloco-report", folder, "--output", tmp_path / "report.html")
    assert_one_clear_line("ray-diloco-report", code, err, folder / "results.jsonl")


def test_a_status_that_is_none_is_no_status(call, folder):
    plain = json.loads((folder / "status.json").read_text())
    for change in ({"nodes": [{"node": 1}]}, {"limits": 5}, {"master": {"missing": None}}):
        (folder / "status.json").write_text(json.dumps(plain | change))
        code, err = call("ray-diloco-status", folder)
        assert_one_clear_line("ray-diloco-status", code, err, folder / "status.json")


def test_a_trial_that_ended_in_no_known_way_is_no_trial(call, folder):
    plain = json.loads((folder / "results.jsonl").read_text())
    (folder / "results.jsonl").write_text(json.dumps(plain | {"status": "gone"}) + "\n")
    code, err = call("ray-diloco-results", folder)
    assert_one_clear_line("ray-diloco-results", code, err, folder / "results.jsonl")
    assert "'gone' is not a valid Status" in err


@pytest.mark.parametrize("command", READS)
def test_a_folder_that_holds_nothing_is_named(call, tmp_path, command):
    (tmp_path / "empty").mkdir()
    code, err = call(command, *words_of(command, tmp_path / "empty", tmp_path))
    assert_one_clear_line(command, code, err, tmp_path / "empty")


@pytest.mark.parametrize("command", READS)
def test_a_folder_that_is_not_there_is_named(call, tmp_path, command):
    code, err = call(command, *words_of(command, tmp_path / "gone", tmp_path))
    assert_one_clear_line(command, code, err, tmp_path / "gone")
    assert "no such folder" in err


@pytest.mark.parametrize("command", READS)
def test_a_file_in_place_of_a_folder_is_named(call, tmp_path, command):
    (tmp_path / "file").write_text("")
    code, err = call(command, *words_of(command, tmp_path / "file", tmp_path))
    assert_one_clear_line(command, code, err, tmp_path / "file")
    assert "is no folder" in err


@pytest.mark.usefixtures("as_somebody_else")
@pytest.mark.parametrize("command", READS)
def test_a_folder_that_cannot_be_looked_into_is_named(call, folder, tmp_path, command):
    code, err = call(command, *[folder, tmp_path / "exported"][: 1 + (command == EXPORT)])
    assert_one_clear_line(command, code, err, folder)
    assert "Permission denied" in err


@pytest.mark.parametrize(
    ("command", "option"), [("ray-diloco-report", "--output"), ("ray-diloco-results", "--csv")]
)
def test_a_place_where_nothing_can_be_written_is_named(call, folder, tmp_path, command, option):
    for place in (tmp_path / "gone" / "file", tmp_path):
        code, err = call(command, folder, option, place)
        assert_one_clear_line(command, code, err, place)


def test_a_target_that_is_a_file_is_no_place_for_an_export(call, folder, tmp_path):
    (folder / "results.jsonl").unlink()
    (tmp_path / "file").write_text("")
    code, err = call("ray-diloco-export", folder, tmp_path / "file")
    assert_one_clear_line("ray-diloco-export", code, err, tmp_path / "file")


def test_what_is_measured_must_have_a_place_before_it_is_measured(call, tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path, tmp_path / "file" / "measured.yaml"):
        code, err = call("ray-diloco-calibrate", f"out={place}", "steps=1000000")
        assert code == 2, err
        assert str(tmp_path) in err
        assert err.count("\n") == 1, err
        assert "expected" in err


@pytest.mark.parametrize(
    ("command", "words", "meant"),
    [
        ("ray-diloco-node", ["node_di=laptop"], "node_id"),
        ("ray-diloco-node", ["node_id=laptop", "rundir=here"], "run_dir"),
        ("ray-diloco-node", ["node_id=laptop", "diloco.outr_lr=0.3"], "diloco.outer_lr"),
        ("ray-diloco-node", ["node_id=laptop", "experimet=quickstart"], "experiment"),
        ("ray-diloco-calibrate", ["step=3"], "steps"),
        ("ray-diloco-calibrate", ["inner.lerning_rate=3"], "inner.learning_rate"),
        ("ray-diloco-calibrate", ["model=mpl"], "mlp"),
    ],
)
def test_a_typo_is_answered_under_the_name_of_the_command(call, command, words, meant):
    code, err = call(command, *words)
    assert code == 2
    assert err.startswith(f"{command}: ")
    assert err.endswith(f"did you mean {meant}?\n")
    assert err.count("\n") == 1
