import pytest
import torch

from ray_diloco.errors import TrainingError
from ray_diloco.node.feed import BatchFeed


class Shuffled:
    """Batches in another order each epoch."""

    def __init__(self):
        self.epoch = None

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter([self.epoch * 10 + number for number in range(3)])


class Counting:
    """Endless, and able to save its position."""

    def __init__(self, position=0):
        self.position = position
        self.drawn = 0

    def __iter__(self):
        while True:
            self.position += 1
            self.drawn += 1
            yield self.position

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def take(feed, count):
    return [feed.draw() for _ in range(count)]


def test_a_finite_iterable_starts_a_new_epoch():
    assert take(BatchFeed([1, 2, 3]), 7) == [1, 2, 3, 1, 2, 3, 1]


def test_each_epoch_is_told_to_an_iterable_that_wants_to_know():
    assert take(BatchFeed(Shuffled()), 7) == [0, 1, 2, 10, 11, 12, 20]


@pytest.mark.parametrize("batches", [iter([1, 2]), []])
def test_data_that_ends_for_good_is_an_error(batches):
    feed = BatchFeed(batches)
    with pytest.raises(TrainingError, match="the data ended after"):
        take(feed, 3)


def test_a_position_that_the_iterable_saves_is_resumed_without_drawing():
    first = BatchFeed(Counting())
    take(first, 5)
    batches = Counting()
    second = BatchFeed(batches)
    second.load_state_dict(first.state_dict())
    assert take(second, 2) == [6, 7]
    assert (batches.drawn, second.fast_forwarded) == (2, 0)


def test_any_other_iterable_is_fast_forwarded_and_says_so(caplog):
    first = BatchFeed(Shuffled())
    take(first, 5)
    second = BatchFeed(Shuffled())
    second.load_state_dict(first.state_dict())
    assert take(second, 2) == [12, 20]
    assert second.fast_forwarded == 2
    assert "drew 2 batches" in caplog.text


class Position:
    """Somebody's own class: a checkpoint does not read it back."""


@pytest.mark.parametrize(
    ("state", "plain"),
    [
        ({"at": 3, "drawn": (1, 2.0, [b"x", None, True]), "rng": torch.ones(2)}, True),
        ({"at": Position()}, False),
        ([Position], False),
        ({Position(): 1}, False),
    ],
    ids=["plain", "value", "class", "key"],
)
def test_a_position_is_saved_if_a_checkpoint_can_hold_it(state, plain):
    class Data:
        def __iter__(self):
            return iter(range(10))

        def state_dict(self):
            return state

        def load_state_dict(self, state):
            pass

    assert ("batches" in BatchFeed(Data()).state_dict()) == plain
