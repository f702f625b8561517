"""The hub of a run: started for it, or the one that the settings name; entered with checks."""

import random
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ray_diloco.errors import ConfigError, EntryMissing, ForeignRunError, TransientHubError
from ray_diloco.hub.cards import check_same_run
from ray_diloco.hub.connect import connect, endpoint_of
from ray_diloco.hub.embedded.server import EmbeddedHub
from ray_diloco.hub.embedded.storm import plan_of, rules_of
from ray_diloco.hub.entrance import enter, find_token
from ray_diloco.hub.limits import policy_of
from ray_diloco.hub.memory import MemoryStore
from ray_diloco.hub.patience import Retry
from ray_diloco.hub.secret import Secret
from ray_diloco.hub.settings import HubKind, HubSettings
from ray_diloco.protocol.clock import Clock, micros
from ray_diloco.protocol.global_card import CARD_LIMIT, GlobalCard
from ray_diloco.protocol.paths import CARD_PATH, MODEL_PATH
from ray_diloco.protocol.run import RunIdentity
from ray_diloco.timing.wall import WallPort

T = TypeVar("T")

ENTERING = micros(10)
"""For how long passing trouble is waited out before anything runs."""


def _never() -> int:
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HubAccess:
    """The way to a repository that is there. ``store``: what `hub=memory` keeps it in.
    ``restarts``: tells how often the hub's process died and was started again.
    """

    repo_id: str
    endpoint: str | None = None
    token: Secret | None = None
    store: MemoryStore | None = None
    restarts: Callable[[], int] = _never


@contextmanager
def open_hub(
    settings: HubSettings,
    *,
    run_id: str,
    leads: bool,
    run_dir: Path,
    in_actor: bool,
    host: Any = None,
    clock: Clock | None = None,
    seed: int = 0,
    restarts: int = 0,
) -> Generator[HubAccess, None, None]:
    """A private, writable repository for a run; an embedded hub ends with the context.

    ``leads``: this run has the master, which may make the repository. ``in_actor``: serve the
    embedded hub from a Ray actor: ``host`` (see `hub_actor.served_by_actor`), or one of its own.
    ``clock``: dates the commits of a hub in this process. ``seed``: for the faults that it is asked
    for. ``restarts``: how often an actor of its own is started again. UsageError and HubError say
    what is missing.
    """
    repo_id = settings.repo_id or _repo_name(run_id)
    if settings.kind == HubKind.memory:
        yield HubAccess(repo_id=f"local/{repo_id.split('/')[-1]}", store=MemoryStore(clock))
    elif settings.kind == HubKind.embedded and settings.endpoint is None:
        _require_leading(leads)
        folder = run_dir / "hub"
        serving = (
            _served_by_actor(folder, settings, host, seed, restarts)
            if in_actor
            else _served_here(folder, settings, clock, seed)
        )
        with serving as (endpoint, token, told):
            access = _enter(settings, endpoint=endpoint, token=token, repo_id=repo_id, leads=True)
            yield replace(access, restarts=told)
    else:
        yield enter_hub(settings, repo_id=repo_id, leads=leads)


def enter_hub(
    settings: HubSettings, *, repo_id: str, leads: bool, token: Secret | None = None
) -> HubAccess:
    """A repository on a hub that runs already. ``token`` None: the user's. UsageError and HubError
    say what is missing.
    """
    endpoint = endpoint_of(settings)
    token = token or find_token(endpoint)
    try:
        return _enter(settings, endpoint=endpoint, token=token, repo_id=repo_id, leads=leads)
    except TransientHubError as error:
        raise ConfigError(
            "hub.endpoint", endpoint, f"expected a hub that answers: {error}"
        ) from None


def embedded_hub(
    folder: Path,
    settings: HubSettings,
    *,
    seed: int,
    clock: Clock | None = None,
    token: Secret | None = None,
) -> EmbeddedHub:
    """An embedded hub as the settings want it, not started. ``token``: a new one when None."""
    return EmbeddedHub(
        folder,
        host=settings.host,
        port=settings.port,
        token=token,
        clock=clock,
        rules=rules_of(settings),
        plan=plan_of(settings, seed=seed),
    )


Serving = tuple[str, Secret, Callable[[], int]]
"""Endpoint, token, and how often its process was started again."""


@contextmanager
def _served_here(
    folder: Path, settings: HubSettings, clock: Clock | None, seed: int
) -> Generator[Serving, None, None]:
    with embedded_hub(folder, settings, seed=seed, clock=clock) as hub:
        yield hub.endpoint, hub.token, _never


@contextmanager
def _served_by_actor(
    folder: Path, settings: HubSettings, host: Any, seed: int, restarts: int
) -> Generator[Serving, None, None]:
    from ray_diloco.cluster.hub_actor import served_by_actor  # Ray only where it is used

    with served_by_actor(folder, settings, seed=seed, host=host, restarts=restarts) as served:
        yield served.endpoint, served.token, served.restarts


def require_own_run(
    settings: HubSettings, access: HubAccess, run: RunIdentity, *, resumes: bool
) -> None:
    """ForeignRunError when the repository holds a run that this one's master may not lead, or not
    the globals that this one has published.
    """
    assert access.endpoint is not None, "a repository in memory is always new"
    repository = connect(
        settings, repo_id=access.repo_id, endpoint=access.endpoint, token=access.token
    )

    def read() -> GlobalCard | None:
        try:
            commit = repository.head_commit()
            return GlobalCard.from_json(repository.read(CARD_PATH, commit=commit, limit=CARD_LIMIT))
        except EntryMissing:
            return None

    card = _patiently(settings, access.endpoint, read)
    if card is not None:
        check_same_run(card, run, repo_id=access.repo_id, resume=resumes)
    elif run.published:
        raise ForeignRunError(
            f"the repository {access.repo_id} is empty: expected the one that the run published in "
            "(the hub/ of its folder; of a trial that of its sweep, which goes on with "
            "sweep.resume=true)"
        )


def fetch_model(
    settings: HubSettings, access: HubAccess, *, sha256: str, destination: Path
) -> None:
    """The newest global, which must have this hash. HubError when it cannot be had."""
    assert access.endpoint is not None, "whoever shares a memory needs no copy"
    repository = connect(
        settings, repo_id=access.repo_id, endpoint=access.endpoint, token=access.token
    )

    def fetch() -> None:
        commit = repository.head_commit()
        repository.fetch(MODEL_PATH, commit=commit, destination=destination, sha256=sha256)

    _patiently(settings, access.endpoint, fetch)


def _enter(
    settings: HubSettings, *, endpoint: str, token: Secret, repo_id: str, leads: bool
) -> HubAccess:
    def ask() -> str:
        return enter(settings, endpoint=endpoint, token=token, repo_id=repo_id, make=leads)

    repo_id = _patiently(settings, endpoint, ask)
    return HubAccess(repo_id=repo_id, endpoint=endpoint, token=token)


def _patiently(settings: HubSettings, endpoint: str, ask: Callable[[], T]) -> T:
    """Ask, and try again for a while when the hub has passing trouble: nothing runs yet."""
    port = WallPort()
    policy = replace(policy_of(settings), deadline=min(ENTERING, micros(settings.retry_deadline)))
    retry = Retry(policy, random.Random(endpoint), port)
    port.start("enter", retry.asking(ask))
    port.wait()
    (outcome,) = port.collect()
    if outcome.error is not None:
        raise outcome.error
    return outcome.value


def _require_leading(leads: bool) -> None:
    if not leads:
        raise ConfigError(
            "hub.endpoint", None, "expected the address of the hub that the master's run uses"
        )


def _repo_name(run_id: str) -> str:
    """A name that the Hub accepts."""
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", run_id)
    return re.sub(r"([.-])\1+", r"\1", words).strip("-.") or "run"
