"""The seam between an experiment and who runs its participants."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ray_diloco.master.plan import MasterPlan
from ray_diloco.node.plan import NodePlan
from ray_diloco.protocol.run import Event, MasterReport, MasterStatus, NodeReport, NodeStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The state of all participants at one look. ``master`` is None when none runs here."""

    nodes: tuple[NodeStatus, ...]
    master: MasterStatus | None
    events: tuple[Event, ...]
    """What happened since the last look, each participant's in order."""
    ended: bool
    """Every participant has ended, well or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a run ended. ``failures``: participant id -> what went wrong, in one line, with a
    traceback in the log. ``crashes``: node id -> how often it died as the scenario says.
    ``restarts``: participant id -> of what it died each time that it was started again.
    """

    nodes: tuple[NodeReport, ...]
    master: MasterReport | None
    failures: dict[str, str]
    crashes: dict[str, int] = field(default_factory=dict[str, int])
    restarts: dict[str, list[str]] = field(default_factory=dict[str, list[str]])


class Engine(Protocol):
    """Runs the participants of one run. Used once: start, look until ended, finish, close."""

    def start(self, nodes: Sequence[NodePlan], master: MasterPlan | None) -> None:
        """Build all participants (errors surface here), then let them run."""
        ...

    def look(self, timeout: float) -> View:
        """What is going on; waits at most ``timeout`` seconds for something to end."""
        ...

    def stop(self, reason: str) -> None:
        """Ask every node to send what it has and end; the master ends when all have, or after
        `diloco.stop_timeout`. Returns at once.
        """
        ...

    def finish(self) -> Ending:
        """The reports, after `look` said that all has ended."""
        ...

    def close(self) -> None:
        """Leave no process, thread or actor behind. Allowed at any time, and twice."""
        ...
