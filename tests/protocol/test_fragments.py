import pytest

from ray_diloco.errors import ConfigError
from ray_diloco.protocol.fragments import (
    STRIDE,
    cells,
    cells_of_all,
    changed_since,
    described,
    fragment_due,
    gap,
    steps_of,
    tokens_for,
)
from ray_diloco.protocol.ranges import NO_STEPS, StepRanges
from ray_diloco.protocol.settings import DilocoSettings


def settings(**chosen) -> DilocoSettings:
    return DilocoSettings(**({"inner_steps": 12, "fragments": 3} | chosen))


def test_three_fragments_of_twelve_steps_take_turns_every_four():
    apart = gap(12, 3)
    due = {step: fragment_due(step, apart=apart, fragments=3) for step in range(1, 25)}
    sent = {step: each for step, each in due.items() if each is not None}
    assert sent == {4: 1, 8: 2, 12: 0, 16: 1, 20: 2, 24: 0}


def test_one_fragment_is_due_at_each_inner_boundary():
    due = [step for step in range(1, 13) if fragment_due(step, apart=gap(4, 1), fragments=1) == 0]
    assert due == [4, 8, 12]


def test_boundaries_are_never_less_than_one_step_apart():
    assert gap(2, 3) == 1


def test_cells_of_two_fragments_have_nothing_in_common_and_give_back_their_steps():
    steps = StepRanges(((1, 4), (7, 9)))
    one, other = cells(steps, 0), cells(steps, 2)
    assert one == steps
    assert other.spans == ((2 * STRIDE + 1, 2 * STRIDE + 4), (2 * STRIDE + 7, 2 * STRIDE + 9))
    assert not one.overlap(other)
    assert steps_of(one.union(other)) == steps


def test_all_cells_are_each_step_once_for_each_fragment():
    steps = StepRanges.of(3, 5)
    assert len(cells_of_all(steps, 3)) == 9
    assert cells_of_all(steps, 1) == steps
    assert cells_of_all(NO_STEPS, 3) == NO_STEPS


def test_a_step_that_one_fragment_lacks_counts_once():
    lacking = cells(StepRanges.of(1, 4), 1).union(cells(StepRanges.of(3, 6), 2))
    assert steps_of(lacking) == StepRanges.of(1, 6)


def test_cells_of_one_delta_are_told_with_their_fragment():
    assert described(StepRanges.of(1, 4)) == "1-4"
    assert described(cells(StepRanges.of(1, 4), 2)) == "1-4 of fragment 2"
    assert described(NO_STEPS) == ""


@pytest.mark.parametrize("tokens", [0, 1, 7, 12])
def test_shares_of_tokens_add_up(tokens):
    shares = [tokens_for(fragment, tokens, fragments=3) for fragment in range(3)]
    assert sum(shares) == tokens
    assert max(shares) - min(shares) <= 1


def test_a_global_has_new_what_changed_after_the_one_before():
    assert changed_since(4, (5, 4, 6)) == (0, 2)
    assert changed_since(6, (5, 4, 6)) == ()


@pytest.mark.parametrize(
    ("chosen", "complaint"),
    [
        ({"fragments": 0}, "at least 1"),
        ({"fragments": 5}, "divisor of diloco.inner_steps=12"),
        ({"fragments": 24}, "divisor of diloco.inner_steps=12"),
        ({"fragment_mix": -0.1}, "0 to 1"),
        ({"fragment_mix": 1.1}, "0 to 1"),
        ({"fragment_mix": float("nan")}, "0 to 1"),
        ({"fragments": 1, "fragment_mix": 0.5}, "0 with diloco.fragments=1"),
        ({"compat": True}, "a plain peer takes whole deltas only"),
        ({"install": "replace"}, "expected rebase"),
        ({"install": "boundary"}, "expected rebase"),
        ({"max_relative_norm": 3.0}, "norms of different fragments"),
        ({"outer": "adam"}, "expected nesterov or sgd"),
        ({"outer": "delayed_nesterov"}, "expected nesterov or sgd"),
        ({"outer": "buffered"}, "expected nesterov or sgd"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(chosen, complaint):
    with pytest.raises(ConfigError, match=complaint):
        settings(**chosen).check()


@pytest.mark.parametrize(
    "chosen",
    [
        {"fragment_mix": 1.0},
        {"outer": "sgd", "outer_momentum": 0.0},
        {"aggregation": "trimmed_mean", "codec": "int4", "merge": "grace"},
        {"inner_schedule": "dylu", "max_delta_norm": 5.0},
    ],
)
def test_what_goes_with_fragments_is_accepted(chosen):
    settings(**chosen).check()
