"""The wheel: what an installation without a checkout has."""

import ast
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from importlib.metadata import packages_distributions, version
from pathlib import Path

import pytest

import ray_diloco

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


BROUGHT = {"httpx2": "huggingface_hub", "httpcore2": "huggingface_hub"}
"""What the client of another package is made of, and comes with it."""
EXTRA = {"optuna", "sqlalchemy"}
"""Of modules that are imported when they are asked for (extra sweep)."""
PIP = (sys.executable, "-m", "pip", "--quiet")


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    """The wheel, built from the source archive as an index would serve both."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (source,) = folder.glob("*.tar.gz")
    subprocess.run([*PIP, "wheel", "--no-deps", "-w", folder, source], check=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def wheel(archive, tmp_path_factory) -> Path:
    """The folder that an installation puts on the path."""
    found, folder = archive, tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(found) as archive:
        archive.extractall(folder / "installed")
    return folder / "installed"


def python_of(wheel: Path, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(wheel)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def environment(archive, tmp_path) -> Path:
    """The programs of an environment that has this wheel, and what this one has beside it."""
    folder = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    install = ("--python", folder / "bin" / "python", "install", "--no-deps", archive)
    subprocess.run([*PIP, *install], check=True)
    (own,) = folder.glob("lib/*/site-packages")
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


@pytest.mark.slow
def test_an_installed_wheel_runs_the_main_job(environment, tmp_path):
    """With neither the checkout nor its configuration in reach."""
    program = [environment / "python", "-c", "import ray_diloco; print(ray_diloco.__file__)"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = subprocess.run(program, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert Path(found.stdout).is_relative_to(environment.parent), found.stderr
    run = [
        "experiment=quickstart",
        "engine=inproc",
        "run.max_steps=20",
        f"hydra.run.dir={tmp_path}/run",
    ]
    ended = subprocess.run(
        [environment / "ray-diloco", *run], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["status"], result["range_sum"]) == ("done", "ok")
    assert (tmp_path / "run" / "report.html").exists()


def imported_at_the_top(file: Path) -> set[str]:
    """The packages that a module needs to be imported at all."""
    names: set[str] = set()
    for each in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(each, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in each.names}
        elif isinstance(each, ast.ImportFrom) and each.module and not each.level:
            names.add(each.module.partition(".")[0])
    return names - set(sys.stdlib_module_names) - {"ray_diloco"}


def test_what_is_imported_is_required():
    required = {
        re.split(r"[\[<>=!~;]", each)[0].lower().replace("_", "-")
        for each in PROJECT["dependencies"]
    }
    homes = packages_distributions()
    for file in (ROOT / "ray_diloco").rglob("*.py"):
        for name in imported_at_the_top(file) - EXTRA:
            theirs = homes.get(BROUGHT.get(name, name), [name])
            found = {each.lower().replace("_", "-") for each in theirs}
            assert found & required, f"{file.name} imports {name}"


def test_the_version_is_in_one_place():
    assert version("ray-diloco") == ray_diloco.__version__ == PROJECT["version"]
    named = [
        file
        for file in (ROOT / "ray_diloco").rglob("*.py")
        if f'"{PROJECT["version"]}"' in file.read_text(encoding="utf-8")
    ]
    assert named == []


@pytest.mark.slow
def test_a_wheel_brings_its_configuration_and_composes_it(wheel, tmp_path):
    assert (wheel / "ray_diloco/py.typed").exists()
    words = ("-m", "ray_diloco.experiment.main", "cluster=flaky", "--cfg", "job")
    composed = python_of(wheel, *words, folder=tmp_path)
    assert composed.returncode == 0, composed.stderr
    assert "inner_steps: 20" in composed.stdout
    assert "crash_at" in composed.stdout


@pytest.mark.slow
def test_a_wheel_brings_the_plugins_by_which_hydra_sweeps(wheel, tmp_path):
    assert (wheel / "hydra_plugins/ray_diloco_sweep.py").exists()
    assert not (wheel / "hydra_plugins/__init__.py").exists()
    assert not (wheel / "ray_diloco/hydra_plugins").exists()
    sweep = ["debug=default", "run.debug=false", "data=synthetic", "diloco.inner_steps=0,-1"]
    swept = python_of(wheel, "-m", "ray_diloco.experiment.main", "-m", *sweep, folder=tmp_path)
    assert swept.stderr == "ray-diloco: 2 of 2 trials did not end well: 2 invalid\n"
    assert swept.returncode == 2
    found = python_of(
        wheel, "-c", "import hydra_plugins.ray_diloco_sweep as it; print(it.__file__)",
        folder=tmp_path,
    )  # fmt: skip
    assert found.stdout.strip() == str(wheel / "hydra_plugins/ray_diloco_sweep.py")


@pytest.mark.slow
def test_other_applications_of_hydra_can_compose_the_groups(wheel, tmp_path):
    (tmp_path / "config.yaml").write_text("defaults: [{cluster: flaky}, _self_]")
    program = (
        "from hydra import compose, initialize_config_dir;"
        f"initialize_config_dir({str(tmp_path)!r}, version_base='1.3');"
        "print(compose('config').cluster.profiles[1].crash_at)"
    )
    assert python_of(wheel, "-c", program, folder=tmp_path).stdout.strip() == "20.0"


@pytest.mark.slow
def test_the_source_archive_brings_all_that_the_readme_speaks_of(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (found,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(found) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    brought = ("conf/config.yaml", "docs/timeline.png", "deploy/rayjob.yaml", "README.md")
    assert [name for name in (*brought, "tests/reference.py", "LICENSE") if name not in names] == []
