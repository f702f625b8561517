"""What a participant says of trouble that passes."""

import logging
import random

import pytest

from ray_diloco.errors import TransientHubError
from ray_diloco.hub.limits import RetryPolicy
from ray_diloco.hub.patience import QUIET, Retry
from ray_diloco.protocol.clock import Micros, micros

POLICY = RetryPolicy(
    first=micros(1), longest=micros(8), deadline=micros(60), quota_longest=micros(600)
)


class HandClock:
    def __init__(self) -> None:
        self.time = 0

    def now(self) -> Micros:
        return Micros(self.time)

    def utc(self) -> str:
        return "2030-01-01T00:00:00.000000+00:00"


def test_a_hundred_troubles_make_two_lines_and_a_sum(caplog: pytest.LogCaptureFixture) -> None:
    clock = HandClock()
    retry = Retry(POLICY, random.Random(1), clock, who="n1")
    with caplog.at_level(logging.INFO, logger="ray_diloco"):
        for number in range(100):
            clock.time = number * QUIET // 99
            fault = "503 (busy)" if number % 2 else "ReadError reset by peer"
            retry.note(TransientHubError(f"GET /x at hub:80: {fault}", "refused"))
        retry.note(TransientHubError("x.safetensors: arrived damaged", "refused"))
        retry.conclude()
        retry.conclude()
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "INFO"]
    assert all(record.message.startswith("n1: ") for record in caplog.records)
    assert "98 times before" in caplog.messages[1]
    assert "50 x ReadError, 50 x 503, 1 x damaged file" in caplog.messages[2]
