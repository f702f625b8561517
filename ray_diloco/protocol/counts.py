"""Whole numbers that come out of somebody else's JSON."""

from typing import TypeGuard

COUNT_LIMIT = 10**18
"""Every count is below this: a step in a delta's path has at most 18 digits."""


def is_count(value: object) -> TypeGuard[int]:
    """Whether it is a whole number from 0 up, and no bool."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < COUNT_LIMIT
