"""The master of a run whose nodes are training loops of the user's own: no Ray, no configuration
files.
"""

import copy
import hashlib
import logging
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import nn

from ray_diloco.cluster.hub_service import enter_hub, require_own_run
from ray_diloco.cluster.joining import (
    exchange_settings,
    hub_settings,
    own_folder,
    require_module,
)
from ray_diloco.errors import ConfigError, RayDilocoError
from ray_diloco.hub.connect import connect
from ray_diloco.hub.limits import policy_of
from ray_diloco.hub.patience import Retry
from ray_diloco.hub.secret import Secret
from ray_diloco.hub.settings import HubSettings
from ray_diloco.master.evaluator import Evaluator
from ray_diloco.master.master import Master
from ray_diloco.protocol.kinds import check_kind
from ray_diloco.protocol.rules import RULE_SETTINGS, check_for_nodes
from ray_diloco.protocol.run import MasterReport, MasterStatus, RunIdentity, RunLimits
from ray_diloco.protocol.seeds import seeded
from ray_diloco.protocol.settings import DilocoSettings
from ray_diloco.tensors.schema import StateSchema
from ray_diloco.timing.wall import WallPort

logger = logging.getLogger(__name__)

FIXED = ("outer_lr", "outer_momentum", *RULE_SETTINGS)


class Leader:
    """A master in a thread of its own. A context manager: leaving it waits for the run's end."""

    def __init__(self, master: Master, repo_id: str) -> None:
        self._master = master
        self.repo_id = repo_id
        """Full name of the repository."""
        self._report: MasterReport | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="master", daemon=True)
        self._thread.start()

    @property
    def status(self) -> MasterStatus:
        """What the master says of itself."""
        return self._master.status()

    def stop(self, reason: str = "asked to") -> None:
        """End when the nodes have ended, within ``3 * stop_timeout``; nodes that train on then are
        left to whoever leads the run next.
        """
        self._master.stop(reason)

    def wait(self, timeout: float | None = None) -> MasterReport | None:
        """Until the run is over; its report, None when ``timeout`` seconds were not enough. Raises
        what ended the master.
        """
        self._thread.join(timeout)
        if self._error is not None:
            raise self._error
        return self._report

    def __enter__(self) -> "Leader":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.wait()
        else:
            self.stop(f"the leading process failed: {error!r}")

    def _run(self) -> None:
        try:
            self._report = report = self._master.run()
            if not report.deltas_merged:
                logger.warning(
                    "the run in %s is over, no delta was merged: %s",
                    self.repo_id,
                    report.stop_reason,
                )
        except BaseException as error:
            self._error = error
            if not isinstance(error, RayDilocoError):
                logger.exception("the master ended")


def lead(
    model: nn.Module,
    *,
    repo_id: str,
    run_id: str | None = None,
    nodes: Collection[str] = (),
    evaluate: Callable[[nn.Module], float] | None = None,
    max_tokens: int | None = None,
    state_dir: str | Path | None = None,
    endpoint: str | None = None,
    token: str | None = None,
    hub: HubSettings | None = None,
    **diloco: Any,
) -> Leader:
    """Lead a run in ``repo_id`` (made, private, unless it is there) that starts from the weights in
    ``model``; gives the master at work. Called again with the same names after a crash it goes on
    with the run.

    ``run_id``: the repository's name when None. ``nodes``: ids that are waited for; the run ends
    when they and all others that came have ended. ``evaluate``: the held-out loss of a model like
    this one, in nats per token, called with a copy in a thread of its own for each new global.
    ``max_tokens``: of all nodes together, then the run ends. ``state_dir``, ``endpoint``,
    ``token``, ``hub``, ``diloco``: as for `join`.

    ConfigError for what cannot be used, ForeignRunError when the repository holds another run,
    PermanentHubError for a hub that does not let one in.
    """
    require_module(model)
    check_kind("repo_id", repo_id, str)
    check_kind("run_id", run_id, str | None)
    if evaluate is not None and not callable(evaluate):
        raise ConfigError("evaluate", evaluate, "expected a function of a model, or None")
    check_kind("max_tokens", max_tokens, int | None)
    settings = exchange_settings(**diloco)
    if nodes:
        check_for_nodes(settings, len(nodes))
    hub = hub_settings(hub, endpoint)
    access = enter_hub(hub, repo_id=repo_id, token=Secret(token) if token else None, leads=True)
    schema = StateSchema.of(model)
    run = RunIdentity(
        run_id=run_id or access.repo_id.split("/")[-1],
        config_hash=_config_hash(settings, schema),
        seed=0,
    )
    require_own_run(hub, access, run, resumes=False)
    port = WallPort()
    master = Master(
        master_id="leader",
        run=run,
        limits=RunLimits(max_tokens=max_tokens),
        settings=settings,
        expected=tuple(nodes),
        resume=False,
        squash_every=hub.squash_every,
        commits_per_hour=hub.budget,
        initial={name: value.detach().cpu().clone() for name, value in model.state_dict().items()},
        schema=schema,
        evaluator=None if evaluate is None else Evaluator(copy.deepcopy(model), evaluate),
        repository=connect(
            hub, repo_id=access.repo_id, endpoint=access.endpoint, token=access.token
        ),
        retry=Retry(policy_of(hub), seeded(0, run.run_id, "retry"), port, who="master"),
        port=port,
        record=_log,
        state_dir=own_folder(state_dir, access.repo_id, "leader"),
    )
    return Leader(master, access.repo_id)


def _config_hash(settings: DilocoSettings, schema: StateSchema) -> str:
    """Of what must not change while the run goes on."""
    fixed = [schema.fingerprint, *(repr(getattr(settings, name)) for name in FIXED)]
    return hashlib.sha256("\n".join(fixed).encode()).hexdigest()


def _log(event: str, **fields: Any) -> None:
    logger.debug("master: %s %s", event, fields)
