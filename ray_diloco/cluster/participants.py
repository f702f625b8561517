"""Names of participants, and the time that they are given."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ray_diloco.master.plan import MasterPlan
from ray_diloco.node.plan import NodePlan
from ray_diloco.protocol.clock import Micros
from ray_diloco.timing.churn import joins_at
from ray_diloco.timing.times import Times

OpenTimes = Callable[[Mapping[str, Micros]], Times]
"""Starts the run's time for these participants, each of which joins at its own."""


def master_name(plan: MasterPlan) -> str:
    """The master as a participant."""
    return name_of_master(plan.master_id)


def name_of_master(master_id: str) -> str:
    """No node can be called so."""
    return f"{master_id}/master"


def starts_of(nodes: Sequence[NodePlan], master: MasterPlan | None) -> dict[str, Micros]:
    """Each participant with the time at which it joins."""
    starts = {plan.node_id: joins_at(plan.profile, since=Micros(plan.run.since)) for plan in nodes}
    return starts if master is None else starts | {master_name(master): Micros(master.run.since)}


def successor(plan: NodePlan) -> NodePlan:
    """The plan of the next life of a node that died: its name is taken by nobody else, and it goes
    on from its checkpoint.
    """
    return replace(plan, takeover=True, resume=True)
