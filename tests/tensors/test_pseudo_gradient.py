import math

import pytest
import torch

from ray_diloco.tensors.pseudo_gradient import Tally, pseudo_gradient, tally
from ray_diloco.tensors.schema import StateSchema


def test_it_is_baseline_minus_current_of_what_is_floating_or_complex():
    baseline = {
        "w": torch.tensor([3.0, 1.0]),
        "c": torch.tensor([1.0 + 1.0j]),
        "n": torch.tensor(4),
        "s": torch.tensor(2.0),
    }
    current = {
        "w": torch.tensor([1.0, 4.0]),
        "c": torch.tensor([3.0 - 1.0j]),
        "n": torch.tensor(9),
        "s": torch.tensor(0.5),
    }
    found = dict(pseudo_gradient(baseline, current, StateSchema.of_state(current)))
    assert found.keys() == {"w", "c", "s"}
    assert found["w"].tolist() == [2.0, -3.0]
    assert found["c"].tolist() == [-2.0 + 2.0j]
    assert (found["s"].item(), found["s"].shape) == (1.5, ())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_precisions_are_rounded_to_float32_before_the_subtraction(dtype):
    generator = torch.Generator().manual_seed(0)
    before, now = (torch.randn(100_000, generator=generator).to(dtype) for _ in range(2))
    schema = StateSchema.of_state({"w": now})
    found = dict(pseudo_gradient({"w": before}, {"w": now}, schema))
    assert found["w"].dtype == torch.float32
    assert torch.equal(found["w"], before.float() - now.float())
    promoted = dict(pseudo_gradient({"w": before.float()}, {"w": now}, schema))
    assert torch.equal(promoted["w"], found["w"])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_value_that_is_not_finite_is_found(value):
    baseline, current = {"w": torch.zeros(100_000)}, {"w": torch.zeros(100_000)}
    current["w"][99_999] = value
    found = tally(baseline, current, StateSchema.of_state(current))
    assert not found.finite
    assert math.isnan(found.norm)


def test_an_unchanged_state_is_zero_whatever_the_signs_of_its_zeros():
    state = {"w": torch.tensor([-0.0, 0.0, 5.0])}
    found = tally(state, {"w": torch.tensor([0.0, -0.0, 5.0])}, StateSchema.of_state(state))
    assert found.zero
    assert found.finite
    assert found.norm == 0.0


@pytest.mark.parametrize("tiny", [1e-30, 1e-45])
def test_a_change_whose_square_vanishes_in_float32_is_not_zero(tiny):
    found = Tally()
    found.add(torch.tensor([0.0, tiny]))
    assert not found.zero
    assert found.norm == pytest.approx(float(torch.tensor(tiny)), rel=1e-3)


def test_the_norm_is_over_all_entries_but_statistics():
    baseline = {"a": torch.tensor([3.0]), "b": torch.tensor([4.0]), "m": torch.tensor([9.0])}
    current = {name: torch.zeros(1) for name in baseline}
    schema = StateSchema.of_state(current, statistics=["m"])
    assert tally(baseline, current, schema).norm == 5.0
    current["m"].fill_(math.nan)
    assert not tally(baseline, current, schema).finite
