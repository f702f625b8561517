import threading

from ray_diloco.experiment.tracking.points import Point
from ray_diloco.experiment.tracking.tracker import Beside


def point(step: int) -> Point:
    return Point(tag="loss", value=1.0, axis="outer_step", step=step)


class Kept:
    """A tracker in a list, which fails at one step, and may have to wait."""

    def __init__(self, *, fails_at: int | None = None):
        self.told = []
        self.threads = set()
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self._fails_at = fails_at

    def keep(self, points):
        self.may_go_on.wait()
        self.threads.add(threading.current_thread())
        for each in points:
            if each.step == self._fails_at:
                raise RuntimeError("no such project")
            self.told.append(each.step)

    def end(self, status):
        self.told.append(status)


def test_points_arrive_in_order_and_the_end_comes_last():
    kept = Kept()
    tracker = Beside(kept, name="service")
    for step in range(5):
        tracker.keep([point(step)])
    tracker.keep([])
    tracker.end("done")
    assert kept.told == [0, 1, 2, 3, 4, "done"]
    assert threading.current_thread() not in kept.threads


def test_a_slow_service_holds_up_nobody():
    kept = Kept()
    kept.may_go_on.clear()
    tracker = Beside(kept, name="service")
    tracker.keep([point(1)])  # returns although the service does not
    assert kept.told == []
    kept.may_go_on.set()
    tracker.end("done")
    assert kept.told == [1, "done"]


def test_a_service_that_fails_gets_no_more_and_is_told_of_the_end(caplog):
    kept = Kept(fails_at=1)
    tracker = Beside(kept, name="service")
    for step in range(4):
        tracker.keep([point(step)])
    tracker.end("done")
    assert kept.told == [0, "done"]
    assert caplog.messages == ["service gets no more of this run: no such project"]


def test_only_the_first_end_counts():
    kept = Kept()
    tracker = Beside(kept, name="service")
    tracker.end("done")
    tracker.end("failed")
    assert kept.told == ["done"]
