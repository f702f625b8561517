"""Where a run's actors go, on the Ray that this process is connected to."""

from collections.abc import Mapping
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ray_diloco.cluster.misplacement import require_places
from ray_diloco.cluster.placement import Ask, Machine, Placement, Strategy

_OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus"}


class Placing:
    """Gives each actor its options; plans anew for one whose machine has gone."""

    def __init__(self, wanted: Placement, *, grows: bool = False) -> None:
        """``grows``: nothing is planned, since machines come when they are asked for. ConfigError
        when somebody has no place.
        """
        self._wanted = wanted
        self._grows = grows
        self._places = {} if grows else require_places(wanted, machines())

    def options(self, name: str) -> dict[str, Any]:
        """Of the actor of a participant. Who asks for resources is placed by Ray, which knows what
        is free, unless each must have a machine of its own; a machine that is named is the only one
        that will do, so that an actor never waits for one that has gone.
        """
        ask, strategy = self._wanted.asks[name], self._wanted.strategy
        asked = _resources(ask)
        if self._grows or (ask.resources and strategy is not Strategy.strict_spread):
            spread = strategy is Strategy.spread and ask.apart
            return asked | {
                "label_selector": dict(ask.labels),
                "scheduling_strategy": "SPREAD" if spread else "DEFAULT",
            }
        return asked | pinned(self._places[name])

    def move(self, name: str) -> None:
        """Find it a machine among those that live now. ConfigError when there is none."""
        if self._grows:
            return
        present = machines()
        alive = {each.key for each in present}
        placed = {
            other: key for other, key in self._places.items() if other != name and key in alive
        }
        asks = {each: self._wanted.asks[each] for each in (*placed, name)}
        wanted = Placement(asks=asks, strategy=self._wanted.strategy)
        self._places[name] = require_places(wanted, present, placed=placed)[name]

    def told(self) -> list[str]:
        """Who goes where, a line for each machine."""
        lines: list[str] = []
        for each in machines():
            names = [name for name, key in self._places.items() if key == each.key]
            if names:
                lines.append(f"{each.address}  {', '.join(names)}")
        return lines


def machines() -> list[Machine]:
    """Those that live, in an order that does not change."""
    here = ray.get_runtime_context().get_node_id()
    found = [
        Machine(
            key=each["NodeID"],
            address=each["NodeManagerAddress"],
            resources=each["Resources"],
            labels=each.get("Labels") or {},
            here=each["NodeID"] == here,
        )
        for each in ray.nodes()
        if each["Alive"]
    ]
    return sorted(found, key=lambda each: (each.address, each.key))


def beside_this_process() -> dict[str, Any]:
    """Options of an actor that shares this process's machine, and its disk; over a Ray client that
    of its server.
    """
    return pinned(ray.get_runtime_context().get_node_id())


def pinned(machine: str) -> dict[str, Any]:
    """Options of an actor that starts on this machine or not at all."""
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(machine, soft=False)}


def _resources(ask: Ask) -> dict[str, Any]:
    known = {option: ask.resources.get(name, 0.0) for name, option in _OPTIONS.items()}
    custom = _custom(ask.resources)
    memory = round(ask.resources.get("memory", 0))
    return known | {"resources": custom} | ({"memory": memory} if memory else {})


def _custom(resources: Mapping[str, float]) -> dict[str, float]:
    return {
        name: amount
        for name, amount in resources.items()
        if name not in _OPTIONS and name != "memory"
    }
