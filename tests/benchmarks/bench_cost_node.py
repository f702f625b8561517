"""What the exchange takes from the training thread: boundaries, landings, installations.

Our side is a whole `Node` that is stepped by hand, the peer's its coordinator; both with threads as
lanes and a repository without network. A memcpy of the state into kept buffers is 1.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from bench_cost_samples import Sample, measured, milliseconds, ratio
from bench_cost_subjects import Layers, LocalHub, State, numbers_like, silent
from speedtronic.distributed.diloco import DumbDiLoCoCoordinator
from speedtronic.distributed.hub import HubClient

from ray_diloco.hub.digest import sha256_of
from ray_diloco.hub.limits import RetryPolicy
from ray_diloco.hub.memory import MemoryRepository
from ray_diloco.hub.patience import Retry
from ray_diloco.hub.repository import Addition
from ray_diloco.node.account import Origin
from ray_diloco.node.checkpoint import CheckpointShelf, Keeping
from ray_diloco.node.exchange import Exchange
from ray_diloco.node.node import Node
from ray_diloco.node.training import StepReport
from ray_diloco.node.weights import Weights
from ray_diloco.protocol.clock import Micros, micros
from ray_diloco.protocol.global_card import GlobalCard
from ray_diloco.protocol.paths import CARD_PATH, MODEL_PATH
from ray_diloco.protocol.run import RunLimits
from ray_diloco.protocol.seeds import seeded
from ray_diloco.protocol.settings import DilocoSettings
from ray_diloco.tensors.safetensors_writer import write_state
from ray_diloco.timing.wall import WallPort

INNER_STEPS = 4
INSTALLING = {"poll_interval": 0.0, "inner_steps": 1_000_000}
"""A node that always polls and never has a boundary."""
PATIENCE = 300.0
POLICY = RetryPolicy(
    first=micros(0.1), longest=micros(1), deadline=micros(60), quota_longest=micros(60)
)
RUN = "costs"


class Steps:
    """A trainer whose step takes no time: it moves one bias, and has AdamW's state to keep."""

    def __init__(self, model: Layers) -> None:
        self.model = model
        self.local_step = self.tokens = self.overflows = self.fast_forwarded = 0
        self._optimizer = torch.optim.AdamW(model.parameters())
        for parameter in model.parameters():
            self._optimizer.state[parameter] = {
                "step": torch.tensor(1.0),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    @torch.no_grad()
    def step(self) -> StepReport:
        self.model.layers[0].bias.add_(1e-3)
        self.local_step += 1
        self.tokens += 1
        return StepReport(loss=1.0, tokens=1, stepped=True, grad_norm=1.0, learning_rate=0.1)

    def reset_optimizer(self) -> None:
        raise AssertionError("the costs are those of an optimizer that is kept")

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, _state: dict[str, Any]) -> None:
        raise AssertionError("nothing is resumed here")


def publish(repository: Any, outer_step: int, state: State, folder: Path) -> None:
    """One commit with a global."""
    file = write_state(folder / "global.safetensors", state, {"format": "pt"})
    content = file.path.read_bytes()
    card = GlobalCard(
        outer_step=outer_step,
        run_id=RUN,
        publication_id=f"p{outer_step}",
        master_epoch=1,
        model_sha256=sha256_of(content),
    )
    sources = {CARD_PATH: card.to_json(), MODEL_PATH: content}
    repository.commit(
        "global", additions=[Addition(path=path, source=each) for path, each in sources.items()]
    )


class Forgetful:
    """A repository in memory that takes deltas and keeps none of their bytes, which are neither the
    node's memory nor its work.
    """

    def __init__(self) -> None:
        self._inner = MemoryRepository()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def stage(self, additions: Sequence[Addition]) -> None:
        pass

    def commit(self, message: str, *, additions: Sequence[Addition] = (), **settings: Any) -> str:
        kept = [
            each if isinstance(each.source, bytes) else Addition(path=each.path, source=b"gone")
            for each in additions
        ]
        return self._inner.commit(message, additions=kept, **settings)


class SteppedNode:
    """Our node, in the hands of a benchmark."""

    def __init__(
        self,
        model: Layers,
        folder: Path,
        *,
        install: str = "rebase",
        checkpoints: bool = False,
        repository: Any = None,
        training: Any = None,
        inner_steps: int = INNER_STEPS,
        poll_interval: float = 3600.0,
    ) -> None:
        self.model = model
        self.repository: Any = repository or Forgetful()
        if repository is None:
            publish(self.repository, 0, model.state_dict(), folder)
        self._port = WallPort()
        self.events: list[str] = []
        weights = Weights(model, codec="fp32", mismatch="error")
        settings = DilocoSettings(
            inner_steps=inner_steps,
            poll_interval=poll_interval,
            install=install,
            reset_inner_optimizer=False,
        )
        self.exchange = Exchange(
            node_id="n0",
            nonce="costs",
            run_id=RUN if repository is None else "",
            inner_steps=inner_steps,
            repository=self.repository,
            weights=weights,
            retry=Retry(POLICY, seeded(0, "n0", "retry"), self._port),
            clock=self._port,
            state_dir=folder,
        )
        shelf = CheckpointShelf(folder / "checkpoints", keep=2) if checkpoints else None
        self.node = Node(
            origin=Origin(node_id="n0", nonce="costs"),
            settings=settings,
            limits=RunLimits(),
            trainer=training or Steps(model),
            weights=weights,
            exchange=self.exchange,
            repository=self.repository,
            port=self._port,
            record=lambda event, **_: self.events.append(event),
            keeping=Keeping(shelf=shelf),
        )

    @contextmanager
    def running(self) -> Iterator["SteppedNode"]:
        with self.node.living():
            self.node.begin()
            self.step()
            yield self

    def step(self) -> Sample:
        """A step, and what the exchange took from its thread after it."""
        report = self.node.step()
        return measured(lambda: self.node.after_step(report))

    def boundary(self) -> tuple[Sample, Sample]:
        """What a boundary took, and later the landing of its delta."""
        self.events.clear()
        return self._until("upload_started"), self._until("delta_landed", after_lanes=True)

    def installation(self, outer_step: int, state: State, folder: Path) -> Sample:
        """What it took to install a new global."""
        publish(self.repository, outer_step, state, folder)
        self.events.clear()
        return self._until("install", after_lanes=True)

    def _until(self, event: str, *, after_lanes: bool = False) -> Sample:
        """The step that brings an event about, taken while the lanes rest."""
        ends = time.monotonic() + PATIENCE
        while time.monotonic() < ends:
            if after_lanes:
                self._port.wait(Micros(self._port.now() + micros(PATIENCE)))
            sample = self.step()
            if event in self.events:
                return sample
        raise AssertionError(f"{event} did not happen")


def wait_for(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < ends, "nothing happened for long"
        time.sleep(0.001)


class SteppedPeer:
    """The peer's node; without ``hub`` it has no network."""

    def __init__(
        self,
        model: Layers,
        folder: Path,
        *,
        hub: HubClient | None = None,
        inner_steps: int = INNER_STEPS,
        poll_interval: float = 3600.0,
    ) -> None:
        self.model = model
        self._step = 0
        self._inner_steps = inner_steps
        self.coordinator = DumbDiLoCoCoordinator(
            {
                "distributed": {
                    "enabled": True,
                    "role": "worker",
                    "node_id": "n0",
                    "repo_id": "local/run",
                    "inner_steps": inner_steps,
                    "poll_interval": poll_interval,
                    "state_dir": str(folder / "state"),
                }
            },
            model,
            hub=hub or LocalHub(folder),
            state_dir=folder / "state",
            logger=silent(),
        )

    @contextmanager
    def begun(self) -> Iterator[None]:
        self.coordinator.start()
        try:
            yield
        finally:
            self.coordinator.stop()

    @contextmanager
    def running(self) -> Iterator["SteppedPeer"]:
        with self.begun():
            self.boundary()
            yield self

    def after_step(self) -> Sample:
        """What the exchange took from the training thread."""
        self._step += 1
        return measured(lambda: self.coordinator.after_optimizer_step(self.model, self._step))

    @torch.no_grad()
    def step(self) -> Sample:
        self.model.layers[0].bias.add_(1e-3)
        return self.after_step()

    def boundary(self) -> Sample:
        while (self._step + 1) % self._inner_steps:
            self.step()
        sample = self.step()
        wait_for(lambda: not self.coordinator._upload_busy)
        return sample

    def installation(self, state: State) -> Sample:
        """Its own way to install a global that was fetched."""
        return measured(lambda: self.coordinator._install_state(state))


@contextmanager
def busy_lane(folder: Path, state: State) -> Iterator[None]:
    """A thread that subtracts, writes and hashes a delta all the time, as an upload lane does."""
    ended = threading.Event()
    other = Weights(Layers(sum(each.numel() for each in state.values())), codec="fp32", mismatch="")

    def work() -> None:
        while not ended.is_set():
            other.write(folder / "busy.safetensors", {})

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def node_costs(parameters: int, folder: Path, *, samples: int) -> dict[str, Any]:
    """In memcpys of the state."""
    model = Layers(parameters)
    kept = [torch.empty_like(each) for each in model.state_dict().values()]
    live = [each.detach() for each in model.state_dict().values()]
    state = {name: each.detach().clone() for name, each in model.state_dict().items()}
    found: dict[str, list[Sample]] = {}

    def note(name: str, sample: Sample) -> None:
        found.setdefault(name, []).append(sample)

    def memcpy() -> None:
        torch._foreach_copy_(kept, live)

    nodes = {
        name: SteppedNode(Layers(parameters), made(folder / name), **options)
        for name, options in {
            "boundary": {"install": "rebase"},
            "boundary with a checkpoint": {"checkpoints": True},
            "rebase": {"install": "rebase"} | INSTALLING,
            "replace": {"install": "replace"} | INSTALLING,
        }.items()
    }
    peer = SteppedPeer(Layers(parameters), made(folder / "peer"))
    with peer.running():
        for name in nodes:
            with nodes[name].running() as node:
                for turn in range(samples + 1):
                    memcpy_sample = measured(memcpy)
                    taken: dict[str, Sample] = {}
                    if name in ("rebase", "replace"):
                        incoming = numbers_like(state, turn)
                        taken[name] = node.installation(turn + 1, incoming, folder / name)
                        taken[f"{name}, reference"] = peer.installation(incoming)
                    else:
                        taken[name], taken[f"{name}, landing"] = node.boundary()
                        taken[f"{name}, reference"] = peer.boundary()
                        with busy_lane(folder, state):
                            taken[f"{name}, a lane busy"] = node.boundary()[0]
                            taken[f"{name}, a lane busy, reference"] = peer.boundary()
                    if turn:
                        note(f"memcpy for {name}", memcpy_sample)
                        for each, sample in taken.items():
                            note(each, sample)
    return {
        name: ratio(found, name, f"memcpy for {name.split(',')[0]}")
        | {"milliseconds": milliseconds(each)}
        for name, each in found.items()
        if not name.startswith("memcpy")
    }


def made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
