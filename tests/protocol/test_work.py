import math

from ray_diloco.protocol.ranges import StepRanges
from ray_diloco.protocol.work import NO_WORK, Work


def work(first: int, last: int, *, loss: float = 2.0) -> Work:
    steps = StepRanges.of(first, last)
    return Work(steps=steps, tokens=10 * len(steps), loss_sum=loss * len(steps))


def test_stretches_add_up_and_come_apart_again():
    both = work(1, 2, loss=1.0).plus(work(3, 4, loss=3.0))
    assert both == Work(steps=StepRanges.of(1, 4), tokens=40, loss_sum=8.0)
    assert both.mean_loss == 2.0
    assert both.minus(work(1, 2, loss=1.0)) == work(3, 4, loss=3.0)


def test_no_work_is_false_and_has_no_mean():
    assert not NO_WORK
    assert NO_WORK.mean_loss is None
    assert work(1, 1)


def test_nothing_is_left_of_no_steps_whatever_the_losses_were():
    drifting = work(1, 1, loss=0.1).plus(work(2, 2, loss=0.2))
    assert drifting.minus(work(1, 1, loss=0.1)).minus(work(2, 2, loss=0.2)) == NO_WORK
    assert work(1, 2, loss=math.nan).minus(work(1, 2, loss=math.nan)) == NO_WORK
