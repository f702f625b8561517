"""What the README shows of extending the package works as it is shown there."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
import yaml
from hydra import compose, initialize_config_dir

from ray_diloco.cluster.settings import node_profiles
from ray_diloco.experiment.conf_folder import conf_dir
from ray_diloco.experiment.reading import read_config
from ray_diloco.master import outer_optimizer
from ray_diloco.master.outer_optimizer import OuterOptimizer
from ray_diloco.tensors.dtypes import PIECE

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SECTION = README.split("\n## Contributing\n")[1].split("\n## ")[0]


def shown(title: str) -> str:
    """The block of code that follows a title."""
    return re.search(rf"\*\*{title}\*\*.*?```\w+\n(.*?)```", SECTION, flags=re.DOTALL)[1]


@pytest.mark.parametrize("title", ["A cluster preset", "A codec", "An outer optimizer"])
def test_it_takes_less_than_thirty_lines(title):
    assert 0 < len([line for line in shown(title).splitlines() if line.strip()]) < 30


def test_the_cluster_preset_is_one_that_a_run_takes(tmp_path):
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "cafe.yaml").write_text(shown("A cluster preset"))
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        words = [f"hydra.searchpath=[{tmp_path}]", "cluster=cafe"]
        config = read_config(compose("config", words))
    profiles = [profile for _, profile in node_profiles(config.cluster)]
    assert [each.seconds_per_step for each in profiles] == [0.2, 0.3, 0.5]
    assert profiles[2].leave_at == 60.0


@pytest.mark.parametrize("numbers", [1, PIECE, PIECE + 7])
def test_the_codec_decodes_to_signs_times_the_mean(numbers):
    names: dict = {}
    exec(shown("A codec"), names)
    codec = names["SIGN"]
    flat = torch.randn(numbers, generator=torch.Generator().manual_seed(1))
    written = 0
    for piece in flat.split(PIECE):
        encoded = dict(zip(("", ".mean"), codec.encode(piece), strict=True))
        written += encoded[".mean"].numel()
        into = torch.empty_like(piece)
        codec.decode(lambda suffix, out, of=encoded: out.copy_(of[suffix]), into)
        mean = piece.abs().mean()
        assert torch.equal(into, torch.where(piece < 0, -mean, mean))
    assert codec.parts[1].count(numbers) == written


def test_the_codec_shows_what_is_not_finite():
    names: dict = {}
    exec(shown("A codec"), names)
    signs, mean = names["encode"](torch.tensor([1.0, torch.nan]))
    into = torch.empty(2)
    read = {"": signs, ".mean": mean}
    names["decode"](lambda suffix, out: out.copy_(read[suffix]), into)
    assert not into.isfinite().all()


def test_the_outer_optimizer_is_torchs_momentum():
    names = dict(vars(outer_optimizer))
    exec(shown("An outer optimizer").split("# in ")[0], names)
    theirs = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    sgd = torch.optim.SGD([theirs], lr=0.5, momentum=0.9)
    ours, momentum = theirs.detach().clone(), torch.zeros(2, dtype=torch.float64)
    for gradient in ([2.0, 1.0], [-1.0, 3.0]):
        theirs.grad = torch.tensor(gradient, dtype=torch.float64)
        names["heavy_ball"](ours, theirs.grad, momentum, OuterOptimizer(lr=0.5, momentum=0.9))
        sgd.step()
    assert torch.allclose(ours, theirs.detach(), rtol=0, atol=1e-12)


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A copy of the package and its configuration, to be changed."""
    for name in ("ray_diloco", "conf"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def put_in(file: Path, text: str, *, before: str, after: str = "") -> None:
    """Write the text before the first place like that which follows another one."""
    whole = file.read_text(encoding="utf-8")
    at = whole.index(before, whole.index(after))
    file.write_text(whole[:at] + text + whole[at:], encoding="utf-8")


def chosen_by(group: str, name: str, checkout: Path) -> None:
    """The file of the group, as the section says it."""
    assert f"`conf/{group}/{name}.yaml`, `# @package diloco` on its first line" in " ".join(
        SECTION.split()
    )
    (checkout / "conf" / group / f"{name}.yaml").write_text(f"# @package diloco\n{group}: {name}\n")


def run_in(checkout: Path, *words: str) -> dict:
    """The numbers of a small run of a changed package."""
    small = ("debug=default", "hub=memory", "data=synthetic", "data.synthetic_bytes=20000")
    run_dir = checkout / f"run{len([*checkout.glob('run*')])}"
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "ray_diloco.experiment.main",
            *small,
            f"hydra.run.dir={run_dir}",
            *words,
        ],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads((run_dir / "result.json").read_text())


@pytest.mark.slow
def test_who_follows_the_section_on_codecs_has_one_more(checkout):
    package = checkout / "ray_diloco"
    (package / "tensors" / "sign.py").write_text(shown("A codec"))
    codecs = package / "tensors" / "codec.py"
    put_in(codecs, "from ray_diloco.tensors.sign import SIGN\n", before="\nCODECS")
    put_in(codecs, ", SIGN", before=")", after="for codec in (")
    put_in(package / "protocol" / "settings.py", '"sign", ', before='"fp32"', after="CODEC_NAMES")
    chosen_by("codec", "sign", checkout)
    result = run_in(checkout, "codec=sign")
    assert (result["status"], result["range_sum"]) == ("done", "ok")
    assert 0 < result["bytes_up"] < run_in(checkout, "run.seed=0")["bytes_up"]


@pytest.mark.slow
def test_who_follows_the_section_on_outer_optimizers_has_one_more(checkout):
    function, names, step = re.split(r"# in \w+\n", shown("An outer optimizer"))
    file = checkout / "ray_diloco" / "master" / "outer_optimizer.py"
    put_in(file, names, before="        case _:", after="def buffer_names")
    put_in(file, step, before="        case _:", after="def outer_step")
    put_in(file, f"{function}", before="def _unknown")
    rules = checkout / "ray_diloco" / "protocol" / "rules.py"
    (entry,) = re.findall(r'`("heavy_ball": \d)`', SECTION)
    put_in(rules, f"{entry}, ", before='"nesterov"', after="OUTER_BUFFERS")
    chosen_by("outer", "heavy_ball", checkout)
    result = run_in(checkout, "outer=heavy_ball", "diloco.outer_momentum=0.5")
    assert (result["status"], result["range_sum"]) == ("done", "ok")
    assert result["eval_loss"] < result["initial_eval_loss"]


def test_the_folders_are_those_of_the_package():
    named = re.findall(r"^\| `(\w+)` \|", SECTION, flags=re.MULTILINE)
    there = {each.parent.name for each in (ROOT / "ray_diloco").glob("*/__init__.py")}
    assert set(named) == there


def test_the_walk_leads_over_files_that_are_there():
    walk = re.findall(r"`((?:node|master)/\w+\.py)`", SECTION)
    assert len(walk) >= 6
    assert [each for each in walk if not (ROOT / "ray_diloco" / each).exists()] == []


def test_the_changelog_knows_this_version():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"**{version}**" in README.split("\n## Changelog\n")[1]


def test_the_workflow_is_the_check():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    (job,) = workflow["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == ["bash .ci/run"]
