"""Everything that a master is built from, as plain values that travel to its actor."""

from dataclasses import dataclass, field
from pathlib import Path

from ray_diloco.hub.secret import Secret
from ray_diloco.hub.security import SecuritySettings
from ray_diloco.hub.settings import HubSettings
from ray_diloco.protocol.run import RunIdentity, RunLimits
from ray_diloco.protocol.settings import DilocoSettings
from ray_diloco.workload.settings import DataSettings, ModelSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterPlan:
    """The master of a run.

    ``expected``: ids of the nodes that it waits for. ``resume``: the run goes on, under whatever id
    and even when it has ended; a master that only starts again in the middle of its run needs no
    such word. ``standby``: wait until whoever leads is silent for `lease_seconds`.
    ``work_seconds``: what a merge, and an evaluation beside it, takes in virtual time.
    """

    master_id: str
    expected: tuple[str, ...]
    resume: bool
    run: RunIdentity
    limits: RunLimits
    diloco: DilocoSettings
    model: ModelSettings
    data: DataSettings
    hub: HubSettings
    endpoint: str | None
    token: Secret | None
    repo_id: str
    state_dir: Path
    threads: int
    device: str
    standby: bool = False
    security: SecuritySettings = field(default_factory=SecuritySettings)
    work_seconds: float = 0.0
