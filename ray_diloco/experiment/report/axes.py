"""What a loss can be drawn over, and units that suit a run's length."""

from dataclasses import dataclass

from ray_diloco.protocol.clock import MICROS_PER_SECOND

AXES = ("time", "outer_step", "tokens", "bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeUnit:
    """How a run's time is told."""

    name: str
    seconds: float

    def of(self, micros: int) -> float:
        """A time in microseconds in this unit, to a part in ten thousand of a unit."""
        return round(micros / MICROS_PER_SECOND / self.seconds, 4)


def unit_for(last: int) -> TimeUnit:
    """For a run that lasts until ``last``, in microseconds."""
    seconds = last / MICROS_PER_SECOND
    if seconds < 600:
        return TimeUnit(name="seconds", seconds=1)
    if seconds < 4 * 3600:
        return TimeUnit(name="minutes", seconds=60)
    return TimeUnit(name="hours", seconds=3600)


def axis_titles(unit: TimeUnit, *, virtual: bool) -> dict[str, str]:
    """Of each axis, what its numbers are."""
    return {
        "time": f"{'virtual ' if virtual else ''}time ({unit.name})",
        "outer_step": "outer step",
        "tokens": "tokens merged",
        "bytes": "megabytes of deltas merged",
    }
