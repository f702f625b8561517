"""What README.md names is there, and its commands are ones that the program takes."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ray_diloco.experiment.run_files import (
    CONFIG,
    EVENTS,
    METRICS,
    MODEL,
    REPORT,
    RESULT,
    SESSIONS,
    STATUS,
    TIMELINE,
    TRACKED_AS,
)

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROSE = README.split("<!-- settings -->")[0]
BLOCKS = re.findall(r"```bash\n(.*?)```", PROSE, flags=re.DOTALL)
LINES = [
    line.split(" #")[0].split("&&")[-1].strip()
    for block in BLOCKS
    for line in block.replace("\\\n", " ").splitlines()
]
RUNS = [line for line in LINES if line == "ray-diloco" or line.startswith("ray-diloco ")]


def test_the_commands_were_found():
    assert "ray-diloco" in RUNS
    assert len(RUNS) >= 5


@pytest.mark.parametrize("line", RUNS)
def test_every_command_composes(configure, line):
    words = [word for word in shlex.split(line)[1:] if word != "-m" and word[:6] != "hydra."]
    firsts = [re.sub(r"=([^\[{].*?),.*", r"=\1", opened(word)) for word in words]
    configure(*firsts)


def opened(word: str) -> str:
    """A range, an interval or another list of Hydra's grammar as its plain values."""
    return re.sub(r"tag\(\w+,|\b(?:int|float|range|interval|choice)\(|\)", "", word)


@pytest.mark.parametrize(
    "path", sorted(set(re.findall(r"`((?:tests|node|master)/[\w/]+\.py)`", PROSE)))
)
def test_every_file_is_there(path):
    assert (ROOT / path).exists() or (ROOT / "ray_diloco" / path).exists()


@pytest.mark.parametrize("preset", re.search(r"Presets: `([a-z_ ]+)`", PROSE)[1].split())
def test_every_preset_is_there(preset):
    assert (ROOT / "conf" / "cluster" / f"{preset}.yaml").exists()


def test_settings_that_the_prose_names_are_settings():
    reference = README.split("<!-- settings -->")[1]
    groups = "run|diloco|cluster|data|model|inner|hub|engine|time|ray|security|checkpoint"
    named = set(re.findall(rf"`((?:{groups})\.[a-z_]+)(?=[`=])", PROSE))
    missing = {name for name in named if f"`{name}`" not in reference}
    assert missing <= {"model.safetensors", "run.log"}  # files


def test_every_picture_is_there_and_small():
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", PROSE)
    assert pictures
    assert all(0 < (ROOT / each).stat().st_size < 200_000 for each in pictures)


def test_the_table_of_the_run_folder_names_what_a_run_writes():
    table = PROSE.split("| file | what |")[1].split("\n\n")[0]
    written = (
        *(CONFIG, SESSIONS, STATUS, EVENTS, TIMELINE, METRICS, MODEL, RESULT, REPORT),
        TRACKED_AS,
        *("run.log", "logs/", "tensorboard/", "hub/", "state/"),
    )
    assert [name for name in written if f"`{name}`" not in table] == []


@pytest.mark.slow
def test_bash_completes_as_the_readme_says():
    line = "ray-diloco diloco.outer_m"
    (install,) = re.findall(r"`(eval [^`]+)`", PROSE)
    typed = f"COMP_LINE='{line}'; COMP_POINT={len(line)}; COMP_WORDS=({line}); COMP_CWORD=1"
    ask = f"{typed}; hydra_bash_completion"
    told = subprocess.run(
        ["bash", "-c", f"{install}; {ask}; echo ${{COMPREPLY[@]}}"],
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.split() == ["diloco.outer_momentum="]
