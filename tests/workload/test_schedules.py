import pytest
import torch

from ray_diloco.workload.schedules import schedule_factor, set_learning_rate
from ray_diloco.workload.settings import InnerSettings

_COSINE = InnerSettings(warmup_steps=4, schedule_steps=24, final_fraction=0.1)


def test_the_first_update_has_a_small_learning_rate_above_zero():
    factors = [schedule_factor(_COSINE, step) for step in range(5)]
    assert factors == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


def test_cosine_is_half_way_down_in_the_middle_and_stays_at_its_end():
    assert schedule_factor(_COSINE, 14) == pytest.approx(0.55)
    assert schedule_factor(_COSINE, 24) == pytest.approx(0.1)
    assert schedule_factor(_COSINE, 1000) == pytest.approx(0.1)


def test_constant_stays_after_the_warm_up():
    settings = InnerSettings(schedule="constant", warmup_steps=1)
    assert [schedule_factor(settings, step) for step in (0, 1, 10**6)] == [0.5, 1.0, 1.0]


def test_every_group_keeps_its_own_peak():
    weights = [{"params": [torch.zeros(1)], "lr": lr, "initial_lr": lr} for lr in (1.0, 2.0)]
    optimizer = torch.optim.SGD(weights)
    for _ in range(2):
        set_learning_rate(optimizer, 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 1.0]
