"""Costs side by side: works that take turns in one process, and ratios of neighbours.

The machine may be busy with something else. Two works that take turns meet the same neighbours, so
that the median of their paired ratios says more than a ratio of two medians. CPU seconds are of the
whole process, threads included.
"""

import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

Prepare = Callable[[], Callable[[], object]]
"""Makes ready, not measured, and gives the work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Seconds of one work; ``own``: CPU seconds of the thread that did it."""

    wall: float
    cpu: float
    own: float


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def measured(work: Callable[[], object]) -> Sample:
    with without_collector():
        wall, cpu, own = time.perf_counter(), time.process_time(), time.thread_time()
        kept = work()
        sample = Sample(
            wall=time.perf_counter() - wall,
            cpu=time.process_time() - cpu,
            own=time.thread_time() - own,
        )
    del kept
    return sample


def alternate(works: Mapping[str, Prepare], samples: int) -> dict[str, list[Sample]]:
    """Each work so often, in turns; the first turn warms up and does not count."""
    found: dict[str, list[Sample]] = {name: [] for name in works}
    for turn in range(samples + 1):
        order = list(works) if turn % 2 else list(reversed(works))
        for name in order:
            work = works[name]()
            gc.collect()
            sample = measured(work)
            if turn:
                found[name].append(sample)
    return found


def milliseconds(samples: list[Sample]) -> dict[str, float]:
    return {
        kind: round(statistics.median(getattr(each, kind) for each in samples) * 1e3, 2)
        for kind in ("wall", "cpu", "own")
    }


def ratio(found: Mapping[str, list[Sample]], name: str, to: str) -> dict[str, float]:
    """Medians of paired ratios, in wall time, CPU time, and CPU time of the thread."""
    return {
        kind: round(
            statistics.median(
                getattr(one, kind) / max(getattr(other, kind), 1e-9)
                for one, other in zip(found[name], found[to], strict=True)
            ),
            3,
        )
        for kind in ("wall", "cpu", "own")
    }
