"""What a global says of one incarnation of a node."""

from collections.abc import Set
from dataclasses import dataclass

from ray_diloco.protocol.global_card import GlobalCard, NodeRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """Who a node is. ``forerunners``: nonces under which the name was used before; None: not looked
    at.
    """

    node_id: str
    nonce: str
    forerunners: Set[str] | None = None

    def row_in(self, card: GlobalCard) -> NodeRow | None:
        """This incarnation's row of the `nodes` table."""
        row = card.nodes.get(self.node_id)
        return row if row is not None and row.nonce == self.nonce else None

    def is_in(self, card: GlobalCard, number: int) -> bool:
        """Whether the delta of this number was merged, or refused."""
        row = self.row_in(card)
        return row is not None and row.last_local_step >= number

    def taken_over_in(self, card: GlobalCard) -> bool:
        """Whether somebody has the name who did not have it before."""
        row = card.nodes.get(self.node_id)
        nonce = row.nonce if row is not None else None
        known = self.forerunners is None or nonce in self.forerunners
        return not (nonce is None or nonce == self.nonce or known)
