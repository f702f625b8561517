import pytest

from ray_diloco.protocol.clock import micros


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0, 0), (1, 1_000_000), (0.1, 100_000), (1.2345678, 1_234_568)]
)
def test_seconds_are_rounded_to_the_nearest_microsecond(seconds: float, expected: int):
    assert micros(seconds) == expected
