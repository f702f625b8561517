"""What README.md names is there, and its commands are ones that the program takes."""

import re
import shlex
from pathlib import Path

import pytest

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
    words = [word for word in shlex.split(line)[1:] if word != "-m"]
    firsts = [re.sub(r"=([^\[{].*?),.*", r"=\1", word) for word in words]
    configure(*firsts)


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
    assert missing <= {"model.safetensors"}  # a file
