"""A run whose deltas are all refused says so while it runs."""

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from master_scene import (
    InlinePort,
    card_of,
    claim,
    delta,
    lead,
    merged_of,
    published,
    send,
    tensors_of,
)
from safetensors.torch import save

from ray_diloco.hub.memory import MemoryRepository
from ray_diloco.hub.repository import Addition
from ray_diloco.protocol.paths import delta_path

POLL = 0.05


def bad(step: int) -> Addition:
    """A delta that is not finite."""
    header = {key: value for key, value in card_of("bad", step).header().items() if key != "sha256"}
    content = save(tensors_of(1) | {"w": torch.full((4, 3), math.nan)}, metadata=header)
    return Addition(path=delta_path("bad", step), source=content)


class Told:
    """What a master recorded."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, event: str, **fields: Any) -> None:
        self.events.append((event, fields))

    def of(self, event: str) -> list[dict[str, Any]]:
        return [fields for name, fields in self.events if name == event]


def playing(acts: Iterator[Callable[[], object]]) -> InlinePort:
    return InlinePort(lambda: next(acts, lambda: None)())


def test_a_node_is_told_of_its_refused_delta_while_there_is_nothing_to_merge(tmp_path):
    repository, told = MemoryRepository(), Told()
    nodes, seen = repository.another(), []
    send(repository, claim("bad"), bad(10))

    def look() -> None:
        seen.append(published(nodes).nodes["bad"])

    acts = iter([look, lambda: send(nodes, claim("bad", "done"))])
    report = lead(repository, tmp_path, port=playing(acts), expected=("bad",), record=told)
    ((step, reason),) = seen[0].rejected
    assert (step, seen[0].last_local_step) == (10, 10)
    assert "finite" in reason
    first, last = told.of("publication")
    assert (first["outer_step"], first["deltas"], len(first["refused"])) == (0, [], 1)
    assert last["refused"] == []
    assert len(report.rejected) == 1


def test_a_refusal_is_recorded_at_once_with_its_path_reason_node_and_steps(tmp_path):
    repository, told = MemoryRepository(), Told()
    send(repository, claim("bad", "done"), bad(10))
    lead(repository, tmp_path, expected=("bad",), record=told)
    (refusal,) = told.of("delta_rejected")
    assert refusal["path"] == delta_path("bad", 10)
    assert (refusal["node"], refusal["local_step"], refusal["covers"]) == ("bad", 10, "1-10")
    assert "finite" in refusal["reason"]
    names = [name for name, _ in told.events]
    assert names.index("delta_rejected") < names.index("publication")


def test_a_flood_of_bad_deltas_costs_one_publication_for_each_poll_interval(tmp_path):
    repository, told = MemoryRepository(), Told()
    nodes = repository.another()
    steps = iter(range(10, 10_000, 10))
    port = InlinePort()
    port._on_idle = lambda: send(  # type: ignore[method-assign]
        nodes, claim("bad", "done") if port.now() > 20 * POLL * 1e6 else bad(next(steps))
    )
    send(repository, claim("bad"))
    master_times: list[int] = []

    def record(event: str, **fields: Any) -> None:
        told(event, **fields)
        if event == "publication":
            master_times.append(port.now())

    lead(repository, tmp_path, port=port, expected=("bad",), record=record, poll_interval=POLL)
    assert len(told.of("delta_rejected")) >= 20
    assert len(master_times) >= 10
    gaps = [later - earlier for earlier, later in pairwise(master_times[:-1])]
    assert min(gaps) >= POLL * 1e6


def test_what_can_be_merged_takes_the_refusals_along_in_one_publication(tmp_path):
    repository, told = MemoryRepository(), Told()
    send(repository, claim("bad", "done"), claim("good", "done"), bad(10), delta("good", 10))
    report = lead(repository, tmp_path, expected=("bad", "good"), record=told)
    assert [len(each["refused"]) for each in told.of("publication")] == [1, 0]
    assert merged_of(report)["good"] == "1-10"
    assert report.accounts["bad"]["nonce-bad"]["rejected"] == "1-10"


def model_after(folder: Path, *between: Addition) -> str:
    """sha256 of the global after two deltas, with something bad between them."""
    repository = MemoryRepository()
    nodes = repository.another()
    acts: list[Callable[[], object]] = [
        lambda: send(nodes, delta("good", 10)),
        lambda: None,
        *(lambda each=each: send(nodes, each) for each in between),
        lambda: send(nodes, delta("good", 20, base=1)),
        lambda: None,
        lambda: send(nodes, claim("good", "done"), claim("bad", "done")),
    ]
    return lead(repository, folder, port=playing(iter(acts)), expected=("good",)).model_sha256


def test_weights_and_momentum_go_on_from_a_publication_that_only_refused(tmp_path):
    calm = model_after(tmp_path / "calm")
    assert model_after(tmp_path / "troubled", claim("bad"), bad(10), bad(20)) == calm
