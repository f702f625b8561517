"""Requests and bytes of the exchange, counted at the embedded hub.

One after the other, so that what the hub sees belongs to one of them: a node's poll when nothing is
new, a delta, a publication, and a round when there is no new delta.
"""

import threading
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from bench_cost_node import POLICY, RUN, SteppedNode, made, wait_for
from bench_cost_subjects import Layers, State, numbers_like, silent
from huggingface_hub import HfApi
from speedtronic.distributed.hub import HubClient
from speedtronic.distributed.outer import MasterOuterLoop

from ray_diloco.hub.client import HubRepository
from ray_diloco.hub.embedded.server import EmbeddedHub
from ray_diloco.hub.entrance import enter
from ray_diloco.hub.patience import Retry
from ray_diloco.hub.secret import Secret
from ray_diloco.hub.settings import HubSettings
from ray_diloco.master.master import Master
from ray_diloco.protocol.clock import Access, Effect
from ray_diloco.protocol.paths import parse_delta_path
from ray_diloco.protocol.run import RunIdentity, RunLimits
from ray_diloco.protocol.seeds import seeded
from ray_diloco.protocol.settings import DilocoSettings
from ray_diloco.tensors.schema import StateSchema
from ray_diloco.timing.wall import WallPort

REPO, PEERS_REPO = "local/ours", "local/theirs"
UPLOADING = frozenset({"batch", "upload", "upload_part", "complete", "commit", "preupload"})
COMMIT = "POST commit"
LOOK_SECONDS = 0.5
"""Between two looks of the master: longer than any request takes."""


class Counted:
    """A plan of the hub without faults that remembers who asked for what."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []

    def __call__(self, route: str, request: Any) -> None:
        self.seen.append((route, request.method, request.match_info.get("path", "")))

    def forget(self) -> None:
        self.seen.clear()

    def told(self, routes: Collection[str] = ()) -> list[str]:
        """Methods and routes in order; ``routes``: these alone."""
        return [
            f"{method} {route}" for route, method, _ in self.seen if not routes or route in routes
        ]

    def deltas_fetched(self) -> int:
        return sum(
            route == "resolve" and method == "GET" and parse_delta_path(path) is not None
            for route, method, path in self.seen
        )


class Place(Protocol):
    """Where a hub listens."""

    @property
    def endpoint(self) -> str: ...

    @property
    def token(self) -> Secret: ...


def repository_of(hub: Place) -> HubRepository:
    return HubRepository(endpoint=hub.endpoint, token=hub.token, repo_id=REPO)


def master_of(
    repository: HubRepository, state: State, folder: Path, port: WallPort, events: list[str]
) -> Master:
    return Master(
        master_id="m",
        run=RunIdentity(run_id=RUN, config_hash="c" * 64, seed=0),
        limits=RunLimits(),
        settings=DilocoSettings(poll_interval=LOOK_SECONDS),
        expected=(),
        resume=False,
        initial=state,
        schema=StateSchema.of_state(state),
        evaluator=None,
        repository=repository,
        retry=Retry(POLICY, seeded(0, "m", "retry"), port),
        port=port,
        record=lambda event, **_: events.append(event),
        state_dir=made(folder),
    )


@contextmanager
def leading(hub: Place, state: State, folder: Path) -> Iterator[tuple[HubRepository, list[str]]]:
    """A master that has published its first global; gives its repository and its events."""
    repository, port, events = repository_of(hub), WallPort(), []
    master = master_of(repository, state, folder, port, events)
    thread = threading.Thread(target=lambda: ended(master.run), daemon=True)
    thread.start()
    try:
        wait_for(lambda: repository.traffic.commits > 0)
        yield repository, events
    finally:
        port.close()
        thread.join()


def ended(work: Callable[[], object]) -> None:
    """A closed port ends a master in the middle of its waiting."""
    try:
        work()
    except RuntimeError as error:
        if "closed" not in str(error):
            raise


def our_requests(hub: EmbeddedHub, counted: Counted, model: Layers, folder: Path) -> dict[str, Any]:
    state = {name: each.detach().clone() for name, each in model.state_dict().items()}
    enter(HubSettings(), endpoint=hub.endpoint, token=hub.token, repo_id=REPO, make=True)
    with ExitStack() as stack:
        repository, events = stack.enter_context(leading(hub, state, folder / "master"))
        stepped = SteppedNode(model, made(folder / "node"), repository=repository_of(hub))
        node = stack.enter_context(stepped.running())
        counted.forget()
        events.clear()
        node.boundary()
        wait_for(lambda: "publication" in events)
        sent = counted.told(UPLOADING)
        own = sent.index(COMMIT) + 1
        last = sent.index(COMMIT, own) + 1
        for _ in range(2):  # the first sees the publication
            counted.forget()
            finish(node.exchange.poll(seen=(0, -1), anew=False))
        poll = counted.told({"resolve", "paths_info"})
        counted.forget()
        fetched = repository.traffic.bytes_down
        wait_for(lambda: counted.told()[-2:] == ["GET info"] * 2)
        look = counted.told()[-1:]
        fetched = repository.traffic.bytes_down - fetched
    return {
        "idle poll": poll,
        "delta": sent[:own],
        "publication": sent[own:last],
        "look without a new delta": look,
        "bytes of files fetched by a look without a new delta": fetched,
    }


def finish(lane: Generator[Effect, Any, Any]) -> Any:
    """What a lane gives, run on the spot; it does not wait."""
    answer: Any = None
    while True:
        try:
            effect = lane.send(answer)
        except StopIteration as end:
            return end.value
        answer = effect.call() if isinstance(effect, Access) else None


def peers_requests(
    hub: EmbeddedHub, counted: Counted, model: Layers, folder: Path
) -> dict[str, Any]:
    state = {name: each.detach().clone() for name, each in model.state_dict().items()}
    token = hub.token.reveal()
    client = HubClient(
        PEERS_REPO,
        token=token,
        cache_dir=folder / "cache",
        api=HfApi(endpoint=hub.endpoint, token=token),
    )
    client.create_repo(private=True)
    client.publish_global(state, outer_step=0, work_dir=folder / "work")
    counted.forget()
    client.global_metadata()
    poll = counted.told()
    counted.forget()
    client.upload_delta(
        numbers_like(state, 0), node_id="n0", local_step=20, base_outer_step=0, work_dir=folder
    )
    delta = counted.told()
    counted.forget()
    loop = MasterOuterLoop(client, state, node_state_dir=folder / "master", logger=silent())
    loop.sync_once()
    publication = counted.told()
    first = next(i for i, (route, _, _) in enumerate(counted.seen) if route in UPLOADING)
    counted.forget()
    loop.sync_once()
    size = sum(each.nbytes for each in state.values())
    return {
        "idle poll": poll,
        "delta": delta,
        "publication": publication[first:],
        "bytes of files fetched by a look without a new delta": counted.deltas_fetched() * size,
    }


def hub_costs(parameters: int, folder: Path) -> dict[str, Any]:
    """Requests in the order in which the hub saw them."""
    counted = Counted()
    with EmbeddedHub(folder / "hub", plan=counted) as hub:
        ours = our_requests(hub, counted, Layers(parameters), made(folder / "ours"))
        theirs = peers_requests(hub, counted, Layers(parameters), made(folder / "theirs"))
    return {"ours": counts_of(ours), "reference": counts_of(theirs)}


def counts_of(found: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {"requests": len(each), "commits": each.count(COMMIT), "in order": each}
        if isinstance(each, list)
        else each
        for name, each in found.items()
    }
