"""What became of the participants, told alike by all engines."""

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ray_diloco.cluster.engine import Ending
from ray_diloco.errors import RayDilocoError
from ray_diloco.logs import mask_tokens
from ray_diloco.protocol.run import MasterReport, NodeReport

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Endings:
    """Collects reports and failures as participants end."""

    reports: dict[str, Any] = field(default_factory=dict[str, Any])
    failures: dict[str, str] = field(default_factory=dict[str, str])
    crashes: Counter[str] = field(default_factory=Counter[str])
    lost: set[str] = field(default_factory=set[str])

    def ended(self, participant: str) -> bool:
        return any(participant in each for each in (self.reports, self.failures, self.lost))

    def report(self, participant: str, report: NodeReport | MasterReport) -> None:
        self.reports[participant] = report

    def fail(self, participant: str, error: BaseException | str) -> None:
        """Keep what went wrong as one line, no token in it; the traceback goes to the log."""
        if isinstance(error, BaseException):
            known = isinstance(error, RayDilocoError)
            logger.error("%s failed: %s", participant, error, exc_info=None if known else error)
            error = str(error) if known else f"{type(error).__name__}: {error}"
        line = error.strip().splitlines()[0] if error.strip() else "failed"
        self.failures[participant] = mask_tokens(line)

    def crash(self, participant: str, *, for_good: bool) -> None:
        """It died as the scenario says."""
        self.crashes[participant] += 1
        if for_good:
            self.lost.add(participant)
        logger.info("%s crashed%s", participant, " for good" if for_good else "")

    def ending(self) -> Ending:
        """All reports, nodes in the order of their ids."""
        nodes = [each for _, each in sorted(self.reports.items()) if isinstance(each, NodeReport)]
        masters = [each for each in self.reports.values() if isinstance(each, MasterReport)]
        return Ending(
            nodes=tuple(nodes),
            master=masters[0] if masters else None,
            failures=dict(self.failures),
            crashes=dict(sorted(self.crashes.items())),
        )
