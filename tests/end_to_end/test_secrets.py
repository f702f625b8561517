"""The token of a run is looked for everywhere that a run leaves or shows something."""

import contextlib
import pickle
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp import web

from ray_diloco.cluster.ray_session import ray_session
from ray_diloco.errors import HubError
from ray_diloco.experiment.reading import read_config
from ray_diloco.experiment.run import run
from ray_diloco.experiment.schema import Config
from ray_diloco.hub.client import HubRepository
from ray_diloco.hub.embedded.server import EmbeddedHub
from ray_diloco.hub.embedded.strict import Fault, FaultKind
from ray_diloco.hub.entrance import ensure_repository
from ray_diloco.hub.repository import Addition
from ray_diloco.hub.secret import Secret

TOKEN = "hf_" + "LookForThis" * 3


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedHub]:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with EmbeddedHub(tmp_path / "hub", token=Secret(TOKEN)) as hub:
        yield hub


def settings(hub: EmbeddedHub, **run_settings: Any) -> Config:
    return read_config(
        {
            "run": {"max_steps": 12, "log_level": "DEBUG", **run_settings},
            "engine": {"name": "ray"},
            "ray": {"num_cpus": 2, "include_dashboard": True},
            "cluster": {"nodes": 2, "profiles": [{"seconds_per_step": 0.5}]},
            "time": {"emulate_profile": True},
            "diloco": {"inner_steps": 4, "poll_interval": 0.5},
            "data": {"name": "synthetic", "synthetic_bytes": 20_000},
            "model": {"name": "mlp"},
            "inner": {"warmup_steps": 2},
            "hub": {"endpoint": hub.endpoint},
        }
    )


def files_with_the_token(folder: Path) -> list[str]:
    """Also in the names of files."""
    found = [str(path) for path in folder.rglob("*") if TOKEN in path.name]
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_socket() and TOKEN.encode() in path.read_bytes():
            found.append(str(path))
    return found


def processes_with_the_token() -> list[str]:
    """Of those that this one has started: what everybody sees of them, and their environment."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            shown = [*process.cmdline(), *process.environ().values()]
            if any(TOKEN in text for text in shown):
                found.append(process.name())
    return found


def told_by_ray() -> str:
    """Everything that Ray's state API and dashboard say of actors, tasks, workers and jobs."""
    import ray
    from ray.util import state

    where = ray.get_runtime_context().gcs_address  # there may be another Ray on this machine
    listed: list[Any] = []
    for ask in (state.list_actors, state.list_tasks, state.list_workers, state.list_jobs):
        listed += ask(address=where, detail=True, limit=1000, raise_on_missing_output=False)
    listed += state.list_runtime_envs(address=where, limit=1000)
    assert any("NodeActor" in str(each) for each in listed)
    return "\n".join(map(str, listed))


class Watch:
    """Looks at processes and at Ray while a run is under way."""

    def __init__(self) -> None:
        self.processes = 0
        self.leaks: list[str] = []
        self.told: str | None = None
        self.session: Path | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._body, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _body(self) -> None:
        while not self._over.wait(0.5):
            self.leaks += processes_with_the_token()
            self.processes = max(self.processes, len(psutil.Process().children(recursive=True)))
            with contextlib.suppress(Exception):  # Ray is not there yet, or no longer
                self._ask_ray()

    def _ask_ray(self) -> None:
        import ray

        if ray.is_initialized():
            node = ray._private.worker._global_node
            self.session = Path(node.get_session_dir_path())
            self.told = told_by_ray()


def holding_on(
    watch: Watch, then: Fault | None, commits: int = 5
) -> Callable[[str, web.Request], Fault | None]:
    """After a few commits the run gets no further until Ray has been asked; then the fault."""
    left = [commits]

    def plan(route: str, _request: web.Request) -> Fault | None:
        left[0] -= route == "commit"
        if left[0] >= 0:
            return None
        if watch.told is not None:
            return then
        return Fault(kind=FaultKind.refuse, status=503) if route == "commit" else None

    return plan


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ending", ["done", "failed"])
def test_a_run_on_ray_shows_its_token_nowhere(
    hub: EmbeddedHub, tmp_path: Path, ending: str, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong_token = Fault(kind=FaultKind.refuse, status=401)
    folder = tmp_path / "run"
    config = settings(hub)
    with ray_session(config.ray):  # whose end takes its files away
        with Watch() as watch:
            hub.plan_faults(holding_on(watch, wrong_token if ending == "failed" else None))
            result = run(config, folder)
        assert watch.session is not None
        assert list(watch.session.rglob("worker*.out"))
        assert files_with_the_token(watch.session) == []
    assert result.status == ending
    assert (folder / "logs" / "n0.log").is_file()
    assert files_with_the_token(folder) == []
    assert watch.processes > 3
    assert watch.leaks == []
    assert watch.told is not None
    assert TOKEN not in watch.told
    assert files_with_the_token(tmp_path / "hub") == []
    assert TOKEN not in "".join(capfd.readouterr())


FAULTS = (
    *(Fault(kind=FaultKind.refuse, status=status) for status in (400, 401, 403, 404, 409, 412)),
    *(Fault(kind=FaultKind.refuse, status=status) for status in (429, 500, 503, 507)),
    *(Fault(kind=kind) for kind in (FaultKind.landed_500, FaultKind.lost, FaultKind.reset)),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.kind} {fault.status}")
def test_no_error_holds_the_token_however_it_is_shown(hub: EmbeddedHub, fault: Fault) -> None:
    repo_id = ensure_repository(endpoint=hub.endpoint, token=hub.token, repo_id="local/run")
    repository = HubRepository(endpoint=hub.endpoint, token=hub.token, repo_id=repo_id)
    hub.plan_faults(lambda _route, _request: fault)
    small = Addition(path="x.json", source=b"1")
    large = Addition(path="x.safetensors", source=b"1")
    for call in (
        repository.head_commit,
        lambda: repository.head("x.json"),
        lambda: repository.commit("m", additions=[small]),
        lambda: repository.stage([large]),
        lambda: repository.read("x.json", commit="main", limit=10),
    ):
        error = error_of(call)
        if error is not None:
            shown = "".join(traceback.TracebackException.from_exception(error).format())
            assert TOKEN not in shown + repr(error)
            assert TOKEN.encode() not in pickle.dumps(error)
            assert error.__context__ is None


def error_of(call: Callable[[], object]) -> HubError | None:
    try:
        call()
    except HubError as error:
        return error
    return None
