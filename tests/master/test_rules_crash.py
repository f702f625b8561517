"""What outer rules remember between rounds survives the master, and a disk that is lost with it."""

from pathlib import Path
from typing import Any

import pytest
from killed_master import Place, start
from master_scene import InlinePort, claim, delta, lead, merged_of, published, send

from ray_diloco.hub.memory import MemoryRepository
from ray_diloco.hub.repository import Repository
from ray_diloco.protocol.global_card import GlobalCard
from ray_diloco.protocol.run import MasterReport

NODES = ("a", "b", "c")
STEPS = (10, 20, 30, 40)
RULES: dict[str, dict[str, Any]] = {
    "adam": {"outer": "adam"},
    "delayed_nesterov": {"outer": "delayed_nesterov", "outer_arrivals": 5, "outer_c": 0.1},
    "buffered": {
        "outer": "buffered",
        "outer_arrivals": 5,
        "weighting": "tokens",
        "staleness": "poly",
    },
    "divide": {"divide": "nodes", "weighting": "tokens", "max_deltas_per_round": 2},
    "krum": {"aggregation": "krum", "byzantine": 0},
    "fragments": {"fragments": 2, "outer_momentum": 0.9},
}
HALVES = "11-20,31-40,1000000000001-1000000000010,1000000000021-1000000000030"
"""Steps whose first fragment was merged, then those whose second one was."""


class Broken(Exception):
    """The end of a master."""


class Breaking:
    """A repository at which a master ends, before or after its n-th commit."""

    def __init__(self, inner: MemoryRepository, *, at: int, landed: bool) -> None:
        self._inner, self._left, self._landed = inner, at, landed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self, message: str, **fields: Any) -> str:
        self._left -= 1
        if self._left == 0 and not self._landed:
            raise Broken
        commit = self._inner.commit(message, **fields)
        if self._left == 0:
            raise Broken
        return commit


def script(repository: Repository, rule: str) -> None:
    """Four rounds' worth of deltas of unequal weight."""
    cut = "fragments" in RULES[rule]
    deltas = [
        delta(node, step, tokens=step * (place + 1), **_turn(step) if cut else {})
        for place, node in enumerate(NODES)
        for step in STEPS
    ]
    send(repository, *deltas)


def _turn(step: int) -> dict[str, int]:
    return {"fragment": step // 10 % 2, "fragments": 2}


def covered(rule: str) -> dict[str, str]:
    return dict.fromkeys(NODES, HALVES if "fragments" in RULES[rule] else "1-40")


def end(repository: Repository) -> None:
    """Everybody is done."""
    send(repository, *(claim(node, "done") for node in NODES))


def lead_on(repository: MemoryRepository, folder: Path, rule: str, every: int) -> MasterReport:
    """A whole master; the nodes live until there is nothing left to merge."""
    port = InlinePort(lambda: end(repository))
    return lead(repository, folder, port=port, **options(rule, every))


def options(rule: str, every: int) -> dict[str, Any]:
    shared = {"expected": NODES, "max_deltas_per_round": 3, "outer_state_every": every}
    return shared | RULES[rule]


def calm(folder: Path, rule: str) -> GlobalCard:
    """The last global of a run without a crash."""
    repository = MemoryRepository()
    script(repository, rule)
    lead_on(repository, folder, rule, 1)
    return published(repository)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("landed", [False, True])
def test_a_master_that_lost_everything_goes_on_to_the_same_bits(tmp_path, rule, every, landed):
    repository = MemoryRepository()
    script(repository, rule)
    with pytest.raises(Broken):
        lead(Breaking(repository, at=4, landed=landed), tmp_path / "1", **options(rule, every))
    assert published(repository).outer_step == (3 if landed else 2)
    report = lead_on(repository, tmp_path / "2", rule, every)
    assert merged_of(report) == covered(rule)
    found, wanted = published(repository), calm(tmp_path / "3", rule)
    assert (found.model_sha256, found.outer_step) == (wanted.model_sha256, wanted.outer_step)
    assert found.state_sha256 == wanted.state_sha256


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["delayed_nesterov", "buffered"])
@pytest.mark.parametrize("every", [1, 3])
def test_a_killed_master_goes_on_to_the_same_bits(place: Place, tmp_path, rule, every):
    repository = place.repository()
    script(repository, rule)
    end(repository)
    process = start(
        place, tmp_path / "1", point="after the outer step", time=3, **options(rule, every)
    )
    process.join()
    assert process.exitcode == -9
    report = lead(repository, tmp_path / "2", **options(rule, every))
    assert merged_of(report) == covered(rule)
    assert report.model_sha256 == calm(tmp_path / "3", rule).model_sha256
