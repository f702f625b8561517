"""When machines are there, from a recorded trace."""

import csv
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from ray_diloco.errors import ConfigError
from ray_diloco.timing.profile import NodeProfile

SETTING = "cluster.availability"
COLUMNS = "expected a CSV file with the columns node, from, until (seconds, each node's in order)"

Stretches = list[tuple[float, float]]


def read_availability(path: str) -> dict[str, Stretches]:
    """By node id: the stretches [from, until) in seconds in which the machine is there.

    ConfigError when the file cannot be read or says something else.
    """
    found: dict[str, Stretches] = {}
    try:
        with Path(path).expanduser().open(newline="", encoding="utf-8") as lines:
            table = csv.DictReader(lines)
            if not {"node", "from", "until"} <= set(table.fieldnames or ()):
                raise ValueError("not these columns")
            for row in table:
                start, end = float(row["from"]), float(row["until"])
                found.setdefault(row["node"], []).append((start, end))
    except (OSError, KeyError, TypeError, ValueError, csv.Error) as error:
        raise ConfigError(SETTING, path, f"{COLUMNS}: {error}") from None
    for node_id, stretches in found.items():
        bounds = [bound for stretch in stretches for bound in stretch]
        if not (bounds[0] >= 0 and all(before < after for before, after in pairwise(bounds))):
            raise ConfigError(SETTING, path, f"{COLUMNS}; those of {node_id} are not")
    return found


def there_only(profile: NodeProfile, stretches: Stretches) -> NodeProfile:
    """The profile of a machine that joins with the first stretch, and is dead between any two and
    after the last.
    """
    ends = [*(start for start, _ in stretches[1:]), math.inf]
    gaps = [[gone, back] for (_, gone), back in zip(stretches, ends, strict=True)]
    return replace(profile, join_at=stretches[0][0], away=[gap for gap in gaps if gap[0] < gap[1]])
