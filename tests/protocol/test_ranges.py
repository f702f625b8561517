import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_diloco.protocol.ranges import NO_STEPS, StepRanges

steps = st.sets(st.integers(0, 40))


def ranges_of(members: set[int]) -> StepRanges:
    ranges = NO_STEPS
    for step in members:
        ranges = ranges.union(StepRanges.of(step, step))
    return ranges


@given(steps, steps)
def test_union_minus_and_overlap_are_those_of_sets(a: set[int], b: set[int]):
    x, y = ranges_of(a), ranges_of(b)
    assert set(x.union(y)) == a | b
    assert set(x.minus(y)) == a - b
    assert set(x.overlap(y)) == a & b


@given(steps, steps)
def test_results_are_canonical_so_that_equal_sets_are_equal(a: set[int], b: set[int]):
    assert ranges_of(a).union(ranges_of(b)) == ranges_of(a | b)
    assert ranges_of(a).minus(ranges_of(b)) == ranges_of(a - b)
    assert ranges_of(a).overlap(ranges_of(b)) == ranges_of(a & b)


@given(steps)
def test_ranges_count_order_and_end_like_a_set(members: set[int]):
    ranges = ranges_of(members)
    assert list(ranges) == sorted(members)
    assert len(ranges) == len(members)
    assert bool(ranges) == bool(members)
    if members:
        assert ranges.last == max(members)


@given(steps)
def test_the_text_reads_back(members: set[int]):
    ranges = ranges_of(members)
    assert StepRanges.parse(str(ranges)) == ranges


def test_the_text_is_that_of_the_protocol():
    assert str(StepRanges.of(1, 500)) == "1-500"
    assert str(StepRanges.of(25, 40).union(StepRanges.of(1, 20))) == "1-20,25-40"
    assert str(NO_STEPS) == ""
    assert StepRanges.parse("") == NO_STEPS


def test_a_range_that_ends_before_it_begins_is_empty():
    assert StepRanges.of(5, 4) == NO_STEPS
    with pytest.raises(IndexError):
        _ = NO_STEPS.last


@pytest.mark.parametrize(
    "text",
    [
        "1",
        "1-",
        "-1",
        "5-3",
        "1-2,",
        ",1-2",
        "1-2, 4-5",
        "4-5,1-2",
        "1-3,2-5",
        "1-3,4-5",
        "1-2,1-2",
        "01-2",
        "+1-2",
        "1_0-20",
        "1-٢",
        "1-2\n",
        "1-" + "9" * 19,
    ],
)
def test_a_text_that_is_not_canonical_is_refused(text: str):
    with pytest.raises(ValueError, match="is not"):
        StepRanges.parse(text)


def test_a_huge_range_costs_nothing():
    assert len(StepRanges.parse("1-999999999999999999").minus(StepRanges.of(5, 9))) == 10**18 - 6
