from ray_diloco.experiment.sweep.search_marks import Marks


def test_a_mark_has_the_loss_of_the_last_evaluation_until_then():
    marks = Marks(every=10.0)
    assert marks.told(4.0, 5.0) == []
    assert marks.told(9.0, 4.0) == []
    assert marks.told(31.0, 3.0) == [(1, 4.0), (2, 4.0), (3, 4.0)]
    assert marks.told(39.0, 2.5) == []
    assert marks.told(41.0, 2.0) == [(4, 2.5)]


def test_an_evaluation_at_a_mark_is_the_one_of_the_mark():
    marks = Marks(every=0.1)
    assert marks.told(0.1, 5.0) == [(1, 5.0)]
    assert marks.told(0.1 * 3, 4.0) == [(2, 5.0), (3, 4.0)]


def test_marks_before_the_first_evaluation_are_left_out():
    assert Marks(every=1.0).told(2.5, 5.0) == []


def test_an_evaluation_that_is_told_again_marks_nothing():
    marks = Marks(every=1.0)
    losses = [(0.5, 5.0), (1.5, 4.0), (2.5, 3.0)]
    assert [marks.told(*each) for each in losses[:2]] == [[], [(1, 5.0)]]
    assert [marks.told(*each) for each in losses] == [[], [], [(2, 4.0)]]


def test_a_fast_and_a_slow_trial_are_compared_at_the_same_times():
    fast, slow = Marks(every=10.0), Marks(every=10.0)
    of_fast = [pair for t in range(1, 31) for pair in fast.told(float(t), 5.0 - t / 10)]
    of_slow = [pair for t in range(5, 36, 7) for pair in slow.told(float(t), 5.0 - t / 20)]
    assert of_fast == [(1, 4.0), (2, 3.0), (3, 2.0)]
    assert [mark for mark, _ in of_slow] == [1, 2, 3]
