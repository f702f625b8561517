"""The actors of a run's participants: made with their options, again when they have died."""

from pathlib import Path
from typing import Any

from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ray_diloco.cluster.participants import master_name
from ray_diloco.cluster.placing import Placing
from ray_diloco.master.actor import MasterActor
from ray_diloco.master.plan import MasterPlan
from ray_diloco.node.actor import NodeActor
from ray_diloco.node.plan import NodePlan


class Crew:
    """Needs a Ray session."""

    def __init__(
        self, *, run_dir: Path, log_level: str, gang: Any = None, placing: Placing | None = None
    ) -> None:
        """``run_dir``: gets a log file per actor, on the actor's machine. ``gang``: the placement
        group that they belong into; node i into bundle i modulo their number. ``placing``: says
        where they go without one; None: anywhere.
        """
        self._logs = run_dir / "logs"
        self._log_level = log_level
        self._gang = gang
        self._placing = placing

    def actor(self, plan: NodePlan | MasterPlan) -> Any:
        """One that is being made."""
        return self._node(plan) if isinstance(plan, NodePlan) else self._master(plan)

    def move(self, name: str) -> None:
        """Before a participant gets another actor: a machine that lives. ConfigError when there is
        none.
        """
        if self._gang is None and self._placing is not None:
            self._placing.move(name)

    def _node(self, plan: NodePlan) -> Any:
        return NodeActor.options(**self._options(plan.node_id, plan.index)).remote(
            plan, log_file=self._logs / f"{plan.node_id}.log", log_level=self._log_level
        )

    def _master(self, plan: MasterPlan) -> Any:
        name = master_name(plan)
        return MasterActor.options(**self._options(name, 0)).remote(
            plan,
            name=name,
            log_file=self._logs / f"{plan.master_id}-master.log",
            log_level=self._log_level,
        )

    def _options(self, name: str, index: int) -> dict[str, Any]:
        if self._gang is None:
            return self._placing.options(name) if self._placing is not None else {}
        bundle = index % self._gang.bundle_count
        return {"scheduling_strategy": PlacementGroupSchedulingStrategy(self._gang, bundle)}
