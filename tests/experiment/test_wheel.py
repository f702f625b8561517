"""The wheel: what an installation without a checkout has."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_wheel_brings_its_configuration_and_composes_it(tmp_path):
    pip = [sys.executable, "-m", "pip", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", tmp_path, ROOT], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    assert (tmp_path / "installed/ray_diloco/py.typed").exists()
    composed = subprocess.run(
        [sys.executable, "-m", "ray_diloco.experiment.main", "cluster=flaky", "--cfg", "job"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "inner_steps: 20" in composed.stdout
    assert "crash_at" in composed.stdout
