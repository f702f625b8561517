"""``global/master.json``: the master lives, although it has had nothing to publish for a while."""

import json
from dataclasses import dataclass
from typing import Any

from ray_diloco.errors import GlobalError
from ray_diloco.protocol.counts import is_count
from ray_diloco.protocol.paths import HEARTBEAT_PATH

HEARTBEAT_LIMIT = 4096
"""The most bytes that a heartbeat may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """``beat`` counts up; one of another epoch than the global's says nothing."""

    master_id: str
    master_epoch: int
    beat: int

    def to_json(self) -> bytes:
        fields: dict[str, Any] = {
            "master_id": self.master_id,
            "master_epoch": self.master_epoch,
            "beat": self.beat,
        }
        return (json.dumps(fields, indent=2, sort_keys=True) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes) -> "Heartbeat":
        """GlobalError when it is not a heartbeat."""
        try:
            fields = json.loads(data)
            master_id, epoch, beat = fields["master_id"], fields["master_epoch"], fields["beat"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise GlobalError(f"{HEARTBEAT_PATH} is not a heartbeat") from None
        if not (isinstance(master_id, str) and is_count(epoch) and is_count(beat)):
            raise GlobalError(f"{HEARTBEAT_PATH} is not a heartbeat")
        return cls(master_id=master_id, master_epoch=epoch, beat=beat)
