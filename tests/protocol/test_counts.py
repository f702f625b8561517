import pytest

from ray_diloco.protocol.counts import is_count


@pytest.mark.parametrize("value", [0, 1, 10**18 - 1])
def test_a_whole_number_from_zero_up_is_a_count(value: int):
    assert is_count(value)


@pytest.mark.parametrize(
    "value", [-1, 10**18, True, False, 1.0, float("nan"), "1", None, [1], {"1": 1}]
)
def test_anything_else_is_no_count(value: object):
    assert not is_count(value)
