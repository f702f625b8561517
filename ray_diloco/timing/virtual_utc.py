"""What a calendar would show in virtual time."""

from datetime import UTC, datetime, timedelta

from ray_diloco.protocol.clock import Micros

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
"""When every virtual run starts: texts with times in them are the same in every run."""


def utc_at(now: Micros) -> str:
    """ISO 8601 UTC with microseconds."""
    return (EPOCH + timedelta(microseconds=now)).isoformat(timespec="microseconds")
