"""The oracle of a run: every local step is covered exactly once, or its loss is on the books.

For each node and nonce: trained = merged + rejected + lost + dropped + unsent + unresolved, no step
twice.
"""

from itertools import combinations
from typing import Any

from ray_diloco.protocol.fragments import cells_of_all
from ray_diloco.protocol.ranges import NO_STEPS, StepRanges
from ray_diloco.protocol.run import MasterReport, NodeReport

Books = dict[str, StepRanges]
"""Ranges of local steps by what became of them."""


def check_range_sum(nodes: tuple[NodeReport, ...], master: MasterReport) -> list[str]:
    """A line for each violation; empty when all is well. Nodes without a report are not looked
    at: what they trained is not known.
    """
    return [line for node in nodes for line in _violations(node, books_of(node, master))]


def trained_steps(node: NodeReport) -> StepRanges:
    """The local steps that this incarnation completed, once for each fragment."""
    steps = StepRanges.of(node.first_step + 1, node.first_step + node.local_steps)
    return cells_of_all(steps, node.fragments)


def books_of(node: NodeReport, master: MasterReport | None) -> Books:
    """What became of a node's steps, as master and node together know it; as the node alone knows
    it without the master's report.

    What a refused delta covers is known to its node alone when its header could not be read. A
    delta whose fate the node did not learn is resolved when the master's account has it.
    """
    accounts = master.accounts if master is not None else {}
    account: dict[str, Any] = accounts.get(node.node_id, {}).get(node.nonce, {})
    merged = StepRanges.parse(account.get("merged", ""))
    rejected = StepRanges.parse(account.get("rejected", ""))
    for text in (*node.rejected, *_refused_later(node, master)):
        rejected = rejected.union(StepRanges.parse(text))
    known = merged.union(rejected)
    return {
        "merged": merged,
        "rejected": rejected,
        "lost": StepRanges.parse(node.lost).minus(known),
        "dropped": StepRanges.parse(node.dropped),
        "unsent": StepRanges.parse(node.unsent),
        "unresolved": StepRanges.parse(node.unresolved).minus(known),
    }


def _refused_later(node: NodeReport, master: MasterReport | None) -> list[str]:
    """Ranges of the node's deltas that the master refused after the node had seen its last
    global.
    """
    rejected = master.rejected if master is not None else []
    refused = {str(each["local_step"]) for each in rejected if each["node"] == node.node_id}
    return [ranges for step, ranges in node.awaiting.items() if step in refused]


def _violations(node: NodeReport, books: Books) -> list[str]:
    trained, covered = trained_steps(node), NO_STEPS
    for steps in books.values():
        covered = covered.union(steps)
    lines = []
    if missing := trained.minus(covered):
        lines.append(f"node {node.node_id}: steps {missing} were trained and are nowhere")
    if surplus := covered.minus(trained):
        lines.append(f"node {node.node_id}: steps {surplus} count although nobody trained them")
    for one, other in combinations(books, 2):
        if twice := books[one].overlap(books[other]):
            lines.append(f"node {node.node_id}: steps {twice} count as {one} and as {other}")
    return lines
