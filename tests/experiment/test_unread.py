"""Commands of whose output nobody reads the rest (``| head -1``)."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ray_diloco.unread import UNREAD

ROOT = Path(__file__).parents[2]
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
SMALL = (
    *("debug=default", "run.debug=false", "run.report=false", "run.progress=plain"),
    *("data=synthetic", "data.synthetic_bytes=20000", "hub=memory"),
)
MANY_LINES = "for line in range(2000): "


def unread(program: str, *words: str, folder: Path | None = None) -> tuple[int, str]:
    """Exit code and errors of a program that prints into a pipe of which nobody reads."""
    reads, writes = os.pipe()
    os.close(reads)
    told = subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        stdout=writes,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writes)
    return told.returncode, told.stderr


def command(name: str) -> str:
    """The program of an installed command."""
    module, _, function = SCRIPTS[name].partition(":")
    return f"import sys; sys.argv[0] = {name!r}; from {module} import {function}; {function}()"


@pytest.mark.parametrize("shows", ["print('once')", f"{MANY_LINES}print(line)"])
def test_who_only_shows_something_ends_without_a_word(shows):
    program = f"from ray_diloco.unread import until_unread\nwith until_unread():\n    {shows}"
    assert unread(program) == (UNREAD, "")


def test_a_console_that_only_shows_something_ends_without_a_word():
    program = (
        "from ray_diloco.unread import until_unread\n"
        "from ray_diloco.experiment.consoles import ShowingConsole\n"
        f"with until_unread():\n    {MANY_LINES}ShowingConsole().print(line)"
    )
    assert unread(program) == (UNREAD, "")


@pytest.mark.parametrize(
    "says",
    [
        f"from ray_diloco.unread import say\n{MANY_LINES}say(str(line))",
        "from ray_diloco.experiment.consoles import PatientConsole\n"
        f"console = PatientConsole()\n{MANY_LINES}console.print(line)",
    ],
)
def test_who_works_goes_on_to_its_end(says, tmp_path):
    ends = f"\nimport pathlib\npathlib.Path({str(tmp_path / 'ended')!r}).touch()"
    assert unread(says + ends) == (0, "")
    assert (tmp_path / "ended").exists()


def test_another_connection_that_breaks_is_no_reader_who_left():
    program = (
        "from ray_diloco.unread import until_unread\n"
        "with until_unread():\n    raise BrokenPipeError('the hub has gone')"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert told.returncode == 1
    assert told.stderr.endswith("BrokenPipeError: the hub has gone\n")


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_help_that_nobody_reads_ends_without_a_word(name):
    assert unread(command(name), "--help") == (UNREAD, "")


@pytest.mark.slow
@pytest.mark.parametrize("words", [("-sc", "install=bash"), ("--cfg", "job")])
def test_what_hydra_shows_and_nobody_reads_ends_without_a_word(words, tmp_path):
    assert unread(command("ray-diloco"), *words, folder=tmp_path) == (UNREAD, "")


@pytest.mark.slow
def test_a_run_that_nobody_reads_is_run_to_its_end(tmp_path):
    run = ("ray-diloco", *SMALL, f"hydra.run.dir={tmp_path}/run")
    code, err = unread(command(run[0]), *run[1:], folder=tmp_path)
    assert (code, err) == (0, "")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "done"
