"""Everything that a node is built from, as plain values that travel to its actor."""

from dataclasses import dataclass, field
from pathlib import Path

from ray_diloco.hub.secret import Secret
from ray_diloco.hub.security import SecuritySettings
from ray_diloco.hub.settings import HubSettings
from ray_diloco.node.settings import CheckpointSettings
from ray_diloco.protocol.run import RunIdentity, RunLimits
from ray_diloco.protocol.settings import DilocoSettings
from ray_diloco.timing.profile import NodeProfile
from ray_diloco.workload.settings import DataSettings, InnerSettings, ModelSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """One node of a run.

    ``index`` of ``nodes``: its shard of the data. ``profile``: slow down to it; None takes time as
    it comes. ``endpoint``, ``token``, ``repo_id``: its door to the others; unused by role single.
    ``resume``: go on with earlier training under this name, from its checkpoint where there is one.
    ``reopens``: so does the whole run, whatever its last global says of an end.
    """

    node_id: str
    role: str
    index: int
    nodes: int
    run: RunIdentity
    limits: RunLimits
    diloco: DilocoSettings
    model: ModelSettings
    data: DataSettings
    inner: InnerSettings
    hub: HubSettings
    endpoint: str | None
    token: Secret | None
    repo_id: str
    state_dir: Path
    threads: int
    device: str
    profile: NodeProfile | None
    takeover: bool
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    security: SecuritySettings = field(default_factory=SecuritySettings)
    resume: bool = False
    reopens: bool = False
