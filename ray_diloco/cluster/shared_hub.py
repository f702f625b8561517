"""One hub for many runs, each with a repository of its own."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ray_diloco.cluster.hub_service import HubAccess, enter_hub
from ray_diloco.hub.secret import Secret
from ray_diloco.hub.settings import HubSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedHub:
    """The way to the hub; travels to whoever starts a run."""

    endpoint: str
    token: Secret

    def enter(self, settings: HubSettings, *, run_id: str, leads: bool) -> HubAccess:
        """The run's repository, made if it leads. UsageError and HubError say what is missing."""
        return enter_hub(
            replace(settings, endpoint=self.endpoint),
            repo_id=settings.repo_id or run_id,
            leads=leads,
            token=self.token,
        )


@contextmanager
def shared_hub(
    folder: Path, settings: HubSettings, *, restarts: int = 0
) -> Generator[SharedHub, None, None]:
    """Served by a Ray actor for as long as the context lasts, started again so often when it dies;
    commits bear the machine's time.
    """
    from ray_diloco.cluster.hub_actor import served_by_actor  # Ray only where it is used

    with served_by_actor(folder, settings, seed=0, restarts=restarts) as served:
        yield SharedHub(endpoint=served.endpoint, token=served.token)
