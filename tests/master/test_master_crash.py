"""A master that was killed, wherever it was, has neither lost nor doubled a local step."""

import itertools
import shutil
from pathlib import Path

import pytest
from killed_master import POINTS, Place, start
from master_scene import claim, delta, deltas_listed, lead, merged_of, published, send

from ray_diloco.hub.memory import MemoryRepository
from ray_diloco.hub.repository import Repository

NODES = ("a", "b", "c")
STEPS = (10, 20, 30, 40)
SETTINGS = {"max_deltas_per_round": 3}
QUICK = ("after the commit landed", 3, "empty folder")
"""A process that starts takes seconds; the other cases run where slow tests do."""
CASES = [
    QUICK,
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in itertools.product(POINTS, (1, 3), ("same folder", "empty folder"))
        if case != QUICK
    ),
]


def script(repository: Repository) -> None:
    """Four rounds' worth of deltas, and everybody is done."""
    send(repository, *(delta(node, step) for node in NODES for step in STEPS))
    send(repository, *(claim(node, "done") for node in NODES))


def calm_model(folder: Path, outer_state_every: int) -> str:
    repository = MemoryRepository()
    script(repository)
    settings = SETTINGS | {"outer_state_every": outer_state_every}
    return lead(repository, folder, expected=NODES, **settings).model_sha256


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The final global of a run without a crash."""
    return calm_model(tmp_path_factory.mktemp("calm"), 1)


@pytest.mark.parametrize(("point", "outer_state_every", "disk"), CASES)
def test_a_killed_master_goes_on_to_the_same_global(
    place: Place, tmp_path: Path, calm: str, point: str, outer_state_every: int, disk: str
) -> None:
    repository = place.repository()
    script(repository)
    options = {"expected": NODES, "outer_state_every": outer_state_every} | SETTINGS
    process = start(place, tmp_path / "state", point=point, time=_in_round_three(point), **options)
    process.join()
    assert process.exitcode == -9
    assert published(repository).outer_step in (0, 2, 3)
    if disk == "empty folder":
        shutil.rmtree(tmp_path / "state")
    report = lead(repository, tmp_path / "state", **options)
    assert merged_of(report) == dict.fromkeys(NODES, "1-40")
    assert report.model_sha256 == calm
    assert published(repository).closed
    assert deltas_listed(repository) == []


def _in_round_three(point: str) -> int:
    """How many times a master comes by this point up to its third round."""
    if point == "after the listing":
        return 1
    if point in ("after the blobs", "before the commit", "after the commit landed"):
        return 4  # the first global has its own
    return 3


def test_rounds_without_their_state_give_the_same_global(tmp_path: Path, calm: str) -> None:
    assert calm_model(tmp_path, 3) == calm
