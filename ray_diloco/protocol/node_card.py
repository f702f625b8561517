"""``nodes/<id>/node.json``: a node's claim on its name, written when it starts and when it is
done.
"""

import json
from dataclasses import dataclass
from typing import Any, Literal

from ray_diloco.errors import ContentError
from ray_diloco.protocol.counts import is_count


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCard:
    """``nonce``: random per start, so that two processes of one name can be told apart.
    ``started``: ISO 8601 UTC.
    """

    nonce: str
    started: str
    state: Literal["active", "done"]
    run_id: str | None = None
    last_local_step: int = 0
    """The highest local step that this node has sent or given up; 0 at the start."""
    beat: int = 0
    """Counts the signs of life of a node that has long had nothing else to send."""

    def to_json(self) -> bytes:
        fields: dict[str, Any] = {
            "nonce": self.nonce,
            "started": self.started,
            "state": self.state,
            "last_local_step": self.last_local_step,
        }
        if self.run_id is not None:
            fields["run_id"] = self.run_id
        if self.beat:
            fields["beat"] = self.beat
        return (json.dumps(fields, indent=2, sort_keys=True) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes, *, path: str) -> "NodeCard":
        """ContentError when it is not a claim."""
        try:
            fields = json.loads(data)
            nonce, started, state = fields["nonce"], fields["started"], fields["state"]
            last = fields.get("last_local_step", 0)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise ContentError(f"{path}: not a node's claim") from None
        if not (isinstance(nonce, str) and isinstance(started, str) and is_count(last)):
            raise ContentError(f"{path}: not a node's claim")
        if state not in ("active", "done"):
            raise ContentError(f"{path}: state is {state!r}, not active or done")
        run_id = fields.get("run_id")
        return cls(
            nonce=nonce,
            started=started,
            state=state,
            run_id=run_id if isinstance(run_id, str) else None,
            last_local_step=last,
        )
