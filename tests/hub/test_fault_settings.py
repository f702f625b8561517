"""Faults by configuration: each is what it says, and a seed fixes them."""

import contextlib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from ray_diloco.errors import ConfigError, QuotaExceeded, TransientHubError
from ray_diloco.hub.client import HubRepository
from ray_diloco.hub.embedded.server import EmbeddedHub
from ray_diloco.hub.embedded.storm import BURST, ROUTES, Storm, plan_of, rules_of
from ray_diloco.hub.embedded.strict import Rules, no_faults
from ray_diloco.hub.entrance import ensure_repository
from ray_diloco.hub.repository import Addition
from ray_diloco.hub.settings import FAULT_KINDS, HubSettings

LARGE = bytes(range(256)) * 64


class Asked(NamedTuple):
    """What a plan looks at."""

    method: str
    path: str


def storm(**faults: float) -> Storm:
    return Storm(faults, seed=1, seconds=0.2)


def repository_in(hub: EmbeddedHub) -> HubRepository:
    repo_id = ensure_repository(endpoint=hub.endpoint, token=hub.token, repo_id="local/run")
    return HubRepository(endpoint=hub.endpoint, token=hub.token, repo_id=repo_id)


def test_a_kind_that_does_not_exist_and_a_probability_above_one_are_refused() -> None:
    assert set(ROUTES) <= set(FAULT_KINDS)
    HubSettings(faults=dict.fromkeys(FAULT_KINDS, 0.5)).check()
    with pytest.raises(ConfigError, match="lightning"):
        HubSettings(faults={"lightning": 0.1}).check()
    with pytest.raises(ConfigError, match=r"hub\.faults\.lost"):
        HubSettings(faults={"lost": 1.5}).check()


def test_a_hub_is_kind_and_counts_nothing_unless_it_is_asked_for_more() -> None:
    assert plan_of(HubSettings(), seed=0) is no_faults
    assert rules_of(HubSettings()) == Rules()
    assert HubSettings().budget is None
    assert rules_of(HubSettings(strict=True)) == Rules(
        commits_per_hour=128, one_commit_at_a_time=True
    )
    assert HubSettings(strict=True).budget == 100


def test_a_seed_fixes_what_a_request_suffers_whatever_comes_between() -> None:
    first, second = storm(reset=0.3, lag=0.3), storm(reset=0.3, lag=0.3)
    asked = [Asked("GET", f"/m/{number % 7}") for number in range(50)]
    suffered = [first("info", each) for each in asked]
    for each in asked:
        second("tree", each)
    assert [second("info", each) for each in asked] == suffered
    assert {each.kind.value for each in suffered if each} == {"reset", "lag"}


def test_a_kind_strikes_as_often_as_its_probability_says_and_only_where_it_can() -> None:
    plan = storm(busy=0.2)
    for number in range(1000):
        plan("commit", Asked("POST", f"/{number}"))
        assert plan("resolve", Asked("GET", f"/{number}")) is None
    assert 140 < plan.struck["busy"] < 260


def test_server_errors_come_in_outbreaks() -> None:
    plan = storm(errors=0.01)
    hit = [plan("info", Asked("GET", f"/{n}")) is not None for n in range(3000)]
    starts = [n for n in range(1, 3000) if hit[n] and not hit[n - 1]]
    assert starts
    assert all(all(hit[n : n + BURST]) for n in starts if n + BURST < 3000)


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_every_kind_can_be_switched_on_and_is_waited_out(tmp_path: Path, kind: str) -> None:
    with EmbeddedHub(tmp_path / "hub") as hub:
        repository = repository_in(hub)
        base = repository.commit("one", additions=[Addition(path="x.safetensors", source=LARGE)])
        plan = storm(**{kind: 0.5 if kind in ROUTES else 0.1})
        hub.plan_faults(plan)
        seen: Counter[str] = Counter()
        for number in range(60):
            if plan.struck[kind] and seen["done"]:
                break
            content = LARGE + b"%d" % number
            try:
                repository.commit("m", additions=[Addition(path="y.safetensors", source=content)])
                repository.head("x.safetensors")
                repository.fetch("x.safetensors", commit=base, destination=tmp_path / "x")
                seen["done"] += 1
            except (TransientHubError, QuotaExceeded) as error:
                seen[type(error).__name__] += 1
        assert plan.struck[kind]
        assert seen["done"]


def test_a_429_of_a_storm_says_what_the_hub_says(tmp_path: Path) -> None:
    with EmbeddedHub(tmp_path) as hub:
        repository = repository_in(hub)
        hub.plan_faults(storm(quota=1.0))
        with pytest.raises(QuotaExceeded, match="128 per hour"):
            repository.commit("m", additions=[Addition(path="x.json", source=b"1")])


def test_a_file_over_a_slow_link_arrives_whole(tmp_path: Path) -> None:
    with EmbeddedHub(tmp_path / "hub") as hub:
        repository = repository_in(hub)
        hub.plan_faults(storm(slow=1.0))
        commit = repository.commit("m", additions=[Addition(path="x.safetensors", source=LARGE)])
        place = tmp_path / "x"
        repository.fetch("x.safetensors", commit=commit, destination=place, size=len(LARGE))
        assert place.read_bytes() == LARGE


def test_trouble_never_looks_like_anything_but_trouble_of_the_hub(tmp_path: Path) -> None:
    with EmbeddedHub(tmp_path) as hub:
        repository = repository_in(hub)
        hub.plan_faults(Storm(dict.fromkeys(FAULT_KINDS, 0.2), seed=3, seconds=0.05))
        for number in range(40):
            with contextlib.suppress(TransientHubError, QuotaExceeded):
                addition = Addition(path="x.safetensors", source=LARGE + b"%d" % number)
                commit = repository.commit("m", additions=[addition])
                repository.read("x.safetensors", commit=commit, limit=1 << 20)
