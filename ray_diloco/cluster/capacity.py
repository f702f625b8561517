"""What a Ray cluster has left for a sweep."""

from dataclasses import dataclass

import ray


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """CPUs and bytes of memory that nobody holds."""

    cpus: float
    memory: float
    largest: float
    """CPUs of the largest machine, those that are held included."""
    machines: int = 1


def free_capacity() -> Capacity:
    """Of the Ray that this process is connected to."""
    free = ray.available_resources()
    alive = [each for each in ray.nodes() if each["Alive"]]
    return Capacity(
        cpus=free.get("CPU", 0.0),
        memory=free.get("memory", 0.0),
        largest=max((each["Resources"].get("CPU", 0.0) for each in alive), default=0.0),
        machines=len(alive),
    )
