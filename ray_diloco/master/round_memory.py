"""What a master's rounds remember of those before, as strings of the outer state."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ray_diloco.errors import GlobalError
from ray_diloco.protocol.ledger import Ledger

LEDGER = "ledger"
"""Metadata field of the outer state that holds the ledger."""
NORMS = "norms"
"""The one that holds the norms merged lately."""
NORMS_KEPT = 100
LIVE_NODES = "live_nodes"
"""The one that holds how many nodes lived in each round that no state covers yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """``live_nodes``: kept only where the sum of a round is divided by it."""

    norms: tuple[float, ...] = ()
    live_nodes: tuple[int, ...] = ()

    def after(self, norms: Sequence[float], *, live_nodes: tuple[int, ...] = ()) -> "Memory":
        """With the norms of one round more."""
        return Memory(norms=(*self.norms, *norms)[-NORMS_KEPT:], live_nodes=live_nodes)

    def strings(self, ledger: Ledger) -> dict[str, str]:
        """With the ledger, what a state says."""
        strings = {LEDGER: ledger.to_json(), NORMS: json.dumps(list(self.norms))}
        if self.live_nodes:
            strings[LIVE_NODES] = json.dumps(list(self.live_nodes))
        return strings

    @classmethod
    def from_strings(cls, strings: Mapping[str, str]) -> "Memory":
        """GlobalError when they are malformed."""
        try:
            return cls(
                norms=tuple(float(norm) for norm in json.loads(strings.get(NORMS, "[]"))),
                live_nodes=tuple(int(n) for n in json.loads(strings.get(LIVE_NODES, "[]"))),
            )
        except (ValueError, TypeError):
            raise GlobalError("the outer state's norms or live_nodes are malformed") from None
