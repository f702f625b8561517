from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import pytest

from ray_diloco.errors import ConfigError
from ray_diloco.protocol.kinds import check_kind, check_kinds


class Colour(Enum):
    red = "red"


@dataclass
class Settings:
    share: float = 0.5
    count: int | None = None
    name: str = "x"
    colour: Colour = Colour.red
    flag: bool = False
    more: dict[str, float] = field(default_factory=dict)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"share": 1, "count": 3},
        {"share": np.float32(0.5), "count": np.int64(3)},
        {"more": {"a": "not looked into"}},
    ],
)
def test_what_may_stand_for_a_kind_is_taken(given):
    check_kinds("group", Settings(**given))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"share": "1"}, "group.share='1': expected a number"),
        ({"share": True}, "group.share=True: expected a number"),
        ({"share": None}, "group.share=null: expected a number"),
        ({"count": 1.0}, "group.count=1.0: expected a whole number or null"),
        ({"name": 3}, "group.name=3: expected text"),
        ({"colour": "red"}, "group.colour='red': expected a Colour"),
        ({"flag": 1}, "group.flag=1: expected True or False"),
    ],
)
def test_another_kind_is_named(given, message):
    with pytest.raises(ConfigError, match=message):
        check_kinds("group", Settings(**given))


def test_an_argument_is_checked_likewise():
    check_kind("max_tokens", None, int | None)
    with pytest.raises(ConfigError, match="max_tokens='all': expected a whole number or null"):
        check_kind("max_tokens", "all", int | None)
