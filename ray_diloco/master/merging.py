"""When what waits at the master is merged. Pure."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from ray_diloco.protocol.clock import Micros, micros
from ray_diloco.protocol.settings import DilocoSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What the master knows when it decides.

    ``deltas``: how many may be merged. ``since``: when it saw the first of them. ``answered``: the
    nodes that wait for it, because a delta of theirs waits or is refused. ``silent_at``: when each
    node that has not ended counts as gone, if it says nothing more. ``over``: nobody will send any
    more.
    """

    deltas: int = 0
    since: Micros | None = None
    answered: Set[str] = frozenset()
    silent_at: Mapping[str, Micros] = field(default_factory=dict[str, Micros])
    over: bool = False


def merge_at(settings: DilocoSettings, waiting: Waiting, *, now: Micros) -> Micros | None:
    """The time of the next merge if nothing new comes before it, ``now`` at the earliest; None: a
    merge takes something new.

    grace: arXiv 2401.09135. quorum: arXiv 2604.21428, with a maximum wait.
    """
    if not waiting.deltas:
        return None
    if waiting.over:
        return now
    since = now if waiting.since is None else waiting.since
    match settings.merge:
        case "grace":
            return max(now, Micros(since + micros(settings.grace_seconds)))
        case "quorum" if waiting.deltas < settings.min_deltas:
            return max(now, Micros(since + micros(settings.max_wait)))
        case "synchronous":
            missing = waiting.silent_at.keys() - waiting.answered
            return max([now, *(waiting.silent_at[node_id] for node_id in missing)])
        case _:
            return now
