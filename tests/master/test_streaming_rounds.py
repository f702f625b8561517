"""Rounds in which deltas carry one fragment each: what moves, what stays, what is refused."""

import hashlib

import pytest
import torch
from master_scene import claim, delta, lead, model, published, send, tensors_of
from safetensors.torch import load, load_file

from ray_diloco.hub.memory import MemoryRepository
from ray_diloco.master.outer_optimizer import OuterOptimizer, outer_step
from ray_diloco.protocol.paths import MODEL_PATH, fragment_path

NESTEROV = {"outer_lr": 0.5, "outer_momentum": 0.9}
FIRST = {"fragment": 0, "fragments": 2}
SECOND = {"fragment": 1, "fragments": 2}


def sent(node: str, step: int) -> dict[str, torch.Tensor]:
    return tensors_of(sum(node.encode()) * 1000 + step)


def close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return bool((found.double() - wanted.double()).norm() < 1e-6 * wanted.double().norm())


def test_a_round_moves_the_fragments_that_it_has_deltas_of_and_no_momentum_of_others(tmp_path):
    """Fragment 0 holds w and h, fragment 1 the statistics."""
    repository = MemoryRepository()
    send(repository, delta("a", 10, **FIRST), delta("a", 20, **SECOND), delta("a", 30, **FIRST))
    send(repository, claim("a", "done"))
    report = lead(
        repository, tmp_path, expected=("a",), max_deltas_per_round=1, fragments=2, **NESTEROV
    )
    weights, momentum = model()["w"].double(), torch.zeros(4, 3, dtype=torch.float64)
    for step in (10, 30):
        optimizer, gradient = OuterOptimizer(lr=0.5, momentum=0.9), sent("a", step)["w"].double()
        outer_step(optimizer, weights, gradient, {"momentum": momentum})
    found = load_file(report.model_file)
    assert close(found["w"], weights)
    assert close(
        found["bn.running_var"], model()["bn.running_var"] - sent("a", 20)["bn.running_var"]
    )
    assert published(repository).outer_step == 3
    assert published(repository).fragment_steps == (3, 2)


def test_in_one_round_each_fragment_is_the_mean_of_its_own_deltas(tmp_path):
    repository = MemoryRepository()
    send(repository, delta("a", 10, **FIRST), delta("b", 10, **FIRST), delta("c", 10, **SECOND))
    send(repository, *(claim(node, "done") for node in "abc"))
    plain = {"outer_lr": 1.0, "outer_momentum": 0.0}
    report = lead(repository, tmp_path, expected=("a", "b", "c"), fragments=2, **plain)
    mean = (sent("a", 10)["w"] + sent("b", 10)["w"]) / 2
    found = load_file(report.model_file)
    assert close(found["w"], model()["w"] - mean)
    assert close(
        found["bn.running_var"], model()["bn.running_var"] - sent("c", 10)["bn.running_var"]
    )
    assert published(repository).fragment_steps == (1, 1)


def test_what_changed_lies_in_the_repository_by_itself_too(tmp_path):
    repository = MemoryRepository()
    send(repository, delta("a", 10, **FIRST), claim("a", "done"))
    lead(repository, tmp_path, expected=("a",), fragments=2)
    card, commit = published(repository), repository.head_commit()
    content = repository.read(fragment_path(0), commit=commit, limit=10**6)
    assert card.fragment_sha256 == (hashlib.sha256(content).hexdigest(), "")
    part, whole = load(content), load(repository.read(MODEL_PATH, commit=commit, limit=10**6))
    assert set(part) == {"w", "h", "count"}
    assert all(torch.equal(part[name], whole[name]) for name in part)


@pytest.mark.parametrize(
    ("fragments", "fields", "complaint"),
    [
        (1, FIRST, "it holds fragment 0 of 2, expected one of 1"),
        (2, {}, "it holds the whole model, expected one of 2"),
        (2, {"fragment": 1, "fragments": 1}, "fragment is '1/1'"),
    ],
)
def test_a_delta_that_is_cut_otherwise_is_refused_with_the_reason(
    tmp_path, fragments, fields, complaint
):
    repository = MemoryRepository()
    if fields.get("fragments") == 1:
        found = delta("a", 10, **FIRST)
        content = found.source.replace(b'"fragment":"0/2"', b'"fragment":"1/1"')
        assert content != found.source
        send(repository, type(found)(path=found.path, source=content))
    else:
        send(repository, delta("a", 10, **fields))
    send(repository, claim("a", "done"))
    report = lead(repository, tmp_path, expected=("a",), fragments=fragments)
    assert report.deltas_merged == 0
    ((refused),) = report.rejected
    assert complaint in refused["reason"]


def test_the_first_global_says_into_how_many_fragments_the_model_is_cut(tmp_path):
    repository = MemoryRepository()
    send(repository, claim("a", "done"))
    lead(repository, tmp_path, expected=("a",), fragments=2)
    assert published(repository).fragment_steps == (0, 0)
    assert type(published(repository)).from_json(published(repository).to_json()) == published(
        repository
    )
