"""The cost benchmark runs on a small model; what it says of time is for a person to look at.

Needs the extra `interop`; runs with `-m interop`.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("speedtronic", reason="needs the extra interop; runs in .ci/run")
pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "bench_cost.py"
QUICK = [
    "--params",
    "1",
    "--deltas",
    "9",
    "--samples",
    "1",
    "--rows",
    "2",
    "--steps",
    "8",
    "--turns",
    "1",
]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("costs")
    words = [*QUICK, "--folder", str(folder), "--json", str(folder / "costs.json")]
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "must be" in done.stdout
    return json.loads((folder / "costs.json").read_text())["1 M parameters"]


def test_rounds_are_measured_beside_the_peers(found):
    for name in ("mean", "round", "reference"):
        assert found["round"]["N=9"][f"{name} / read-add into a new sum"]["own"] > 0


def test_boundaries_and_installations_are_measured_beside_the_peers(found):
    for name in ("boundary", "boundary, landing", "boundary, reference", "rebase", "replace"):
        assert found["node"][name]["own"] > 0


def test_requests_keep_to_their_limits(found):
    ours, reference = found["hub"]["ours"], found["hub"]["reference"]
    assert ours["idle poll"]["requests"] == 1
    assert ours["delta"]["requests"] <= 4
    assert ours["publication"]["requests"] <= 8
    assert ours["publication"]["commits"] == 1
    assert ours["bytes of files fetched by a look without a new delta"] == 0
    assert reference["publication"]["commits"] == 2


def test_memory_is_measured_in_processes_of_their_own(found):
    assert found["memory"]["boundary"] < found["memory"]["boundary-reference"]
    assert found["memory"]["round-9"] < found["memory"]["round-9-reference"]


def test_training_is_measured_with_and_without_the_exchange(found):
    for who in ("ours", "reference"):
        assert found["training"][who]["speed on / off"]["wall"] > 0
