"""Names of participants, and the time that they are given."""

from collections.abc import Callable, Sequence

from ray_diloco.master.plan import MasterPlan
from ray_diloco.timing.times import Times

OpenTimes = Callable[[Sequence[str]], Times]
"""Starts the run's time for these participants."""


def master_name(plan: MasterPlan) -> str:
    """The master as a participant; no node can be called so."""
    return f"{plan.master_id}/master"
