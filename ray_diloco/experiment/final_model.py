"""The final model of a run, brought to the run folder from wherever its master was."""

from pathlib import Path

from ray_diloco.cluster.engine import Ending
from ray_diloco.cluster.hub_service import HubAccess, fetch_model
from ray_diloco.errors import HubError
from ray_diloco.experiment.run_files import MODEL
from ray_diloco.hub.settings import HubSettings


def model_here(ending: Ending) -> Path | None:
    """The local file of the final model; None when it is on another machine, or there is none: a
    standby that was never needed has none. A node of role single has its own.
    """
    path = _model_file(ending)
    return path if path is not None and path.is_file() else None


def fetch_if_elsewhere(
    settings: HubSettings, access: HubAccess, ending: Ending, run_dir: Path
) -> list[str]:
    """Bring it from the hub when the master left it on another machine; gives lines to print when
    that cannot be done.
    """
    path = _model_file(ending)
    if path is None or path.is_file():
        return []
    if ending.master is None or access.endpoint is None:
        return [f"the final model is on another machine, in {path}"]
    try:
        fetch_model(
            settings, access, sha256=ending.master.model_sha256, destination=run_dir / MODEL
        )
    except HubError as error:
        return [f"the final model could not be fetched, it stays in {access.repo_id}: {error}"]
    return []


def _model_file(ending: Ending) -> Path | None:
    master = ending.master
    if master is not None:
        return Path(master.model_file) if master.model_file else None
    models = [Path(node.model_file) for node in ending.nodes if node.model_file is not None]
    return models[0] if models else None
