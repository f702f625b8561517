"""A real node around a small model, watched at its repository, which may end like a power cut."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

from ray_diloco.hub.digest import sha256_of
from ray_diloco.hub.limits import RetryPolicy
from ray_diloco.hub.memory import MemoryRepository
from ray_diloco.hub.patience import Retry
from ray_diloco.hub.repository import Addition, Repository
from ray_diloco.node.account import Origin
from ray_diloco.node.checkpoint import CheckpointShelf, Keeping
from ray_diloco.node.exchange import Exchange
from ray_diloco.node.node import Node
from ray_diloco.node.trainer import Trainer
from ray_diloco.node.weights import Weights
from ray_diloco.protocol.clock import Port, micros
from ray_diloco.protocol.global_card import GlobalCard, NodeRow
from ray_diloco.protocol.paths import CARD_PATH, MODEL_PATH
from ray_diloco.protocol.run import Event, RunLimits
from ray_diloco.protocol.seeds import seeded
from ray_diloco.protocol.settings import DilocoSettings
from ray_diloco.tensors.dtypes import State
from ray_diloco.timing.profile import NodeProfile
from ray_diloco.timing.virtual import VirtualClock
from ray_diloco.workload.settings import InnerSettings

RUN_ID = "run-1"
INNER = InnerSettings(learning_rate=0.05, warmup_steps=2, schedule="cosine", schedule_steps=40)
POLICY = RetryPolicy(
    first=micros(0.01), longest=micros(0.05), deadline=micros(1), quota_longest=micros(1)
)


class PowerCut(BaseException):
    """The process is gone: nobody may catch it but the test."""


class Net(nn.Module):
    """Has parameters, statistics and a counter; its forward pass gives the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)
        self.drop = nn.Dropout(0.25)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(self.norm(self.first(batch)).tanh())
        return (self.second(hidden) - batch.sum(1, keepdim=True)).square().mean()


def net() -> Net:
    """The same weights each time."""
    model = Net()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=generator) - 0.5)
    return model


class Stream:
    """Batches by their number; ``cut_at``: the power fails when this one is drawn."""

    def __init__(self, cut_at: int | None = None) -> None:
        self.position = 0
        self._cut_at = cut_at

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            if self.position == self._cut_at:
                raise PowerCut
            generator = torch.Generator().manual_seed(self.position)
            self.position += 1
            yield torch.rand((8, 3), generator=generator)

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


class ForgetfulStream:
    """The same batches from an iterable that cannot save its position."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(Stream())


def global_card(outer_step: int, weights: bytes, **fields: Any) -> GlobalCard:
    """The metadata of a global of our own kind."""
    known = {"run_id": RUN_ID, "publication_id": f"p{outer_step}", "master_epoch": 1}
    return GlobalCard(outer_step=outer_step, model_sha256=sha256_of(weights), **(known | fields))


def publish(
    repository: Repository, outer_step: int, weights: State | bytes, **fields: Any
) -> GlobalCard:
    """One commit with a global and its metadata."""
    content = weights if isinstance(weights, bytes) else save(weights)
    card = global_card(outer_step, content, **fields)
    files = [(CARD_PATH, card.to_json()), (MODEL_PATH, content)]
    additions = [Addition(path=path, source=source) for path, source in files]
    repository.commit(f"outer step {outer_step}", additions=additions)
    return card


def scripted_weights(outer_step: int) -> State:
    """The global of an outer step, whatever the nodes send."""
    generator = torch.Generator().manual_seed(1000 + outer_step)
    return {
        name: value + 0.1 * torch.rand(value.shape, generator=generator)
        if value.dtype.is_floating_point
        else value + outer_step
        for name, value in net().state_dict().items()
    }


def row(nonce: str, last_local_step: int, **fields: Any) -> dict[str, NodeRow]:
    """A `nodes` table with one node."""
    return {
        "n0": NodeRow(nonce=nonce, last_local_step=last_local_step, seen_outer_step=0, **fields)
    }


class Wire:
    """A repository whose calls a test watches: ``before`` and ``after`` are told their names."""

    def __init__(
        self,
        inner: Repository,
        *,
        before: Callable[[str], None] = lambda _: None,
        after: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._inner = inner
        self._before = before
        self._after = after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*args: Any, **fields: Any) -> Any:
            self._before(name)
            answer = found(*args, **fields)
            self._after(name)
            return answer

        return call


@dataclass(kw_only=True)
class Life:
    """One life of node n0."""

    node: Node
    trainer: Trainer
    exchange: Exchange
    events: list[Event] = field(default_factory=list)

    def of(self, event: str) -> list[Event]:
        return [each for each in self.events if each["event"] == event]


SETTINGS = DilocoSettings(
    inner_steps=4, poll_interval=1e-6, async_delta_upload=False, async_global_poll=False
)


def begin(
    repository: Any,
    folder: Path,
    *,
    stream: Any = None,
    settings: DilocoSettings = SETTINGS,
    steps: int = 24,
    nonce: str = "first",
    resume: bool = False,
    takeover: bool = False,
    keep: int = 2,
    every_steps: int | None = None,
    inner: InnerSettings = INNER,
    port: Port | None = None,
    weights_type: type[Weights] = Weights,
    run_id: str = RUN_ID,
) -> Life:
    """A life that has not begun; ``port`` None: a virtual time of its own."""
    trainer = Trainer(net(), stream if stream is not None else Stream(), inner, seed=3)
    weights = weights_type(
        trainer.model,
        codec=settings.codec,
        codec_decay=settings.codec_decay,
        mismatch="error",
        fragments=settings.fragments,
        alpha=settings.fragment_mix,
    )
    port = port or lonely_port()
    exchange = Exchange(
        node_id="n0",
        nonce=nonce,
        run_id=run_id,
        inner_steps=settings.inner_steps,
        repository=repository,
        weights=weights,
        retry=Retry(POLICY, seeded(0, "n0", "retry"), port),
        clock=port,
        state_dir=folder,
        node_timeout=settings.node_timeout,
    )
    shelf = CheckpointShelf(folder / "checkpoints", keep=keep)
    kept = shelf.newest(node_id="n0", run_id=run_id) if resume else None
    events: list[Event] = []

    def record(event: str, **fields: Any) -> None:
        events.append({"event": event} | fields)

    node = Node(
        origin=Origin(node_id="n0", nonce=nonce),
        settings=settings,
        limits=RunLimits(max_steps=steps),
        trainer=trainer,
        weights=weights,
        exchange=exchange,
        repository=repository,
        port=port,
        record=record,
        takeover=takeover,
        keeping=Keeping(shelf=shelf, every_steps=every_steps, kept=kept),
        resume=resume,
    )
    return Life(node=node, trainer=trainer, exchange=exchange, events=events)


def lonely_port() -> Port:
    """Virtual time with nobody else in it."""
    clock = VirtualClock([])
    clock.register("n0")
    return clock.port("n0", profile=NodeProfile())


def repository_with(outer_step: int = 0) -> MemoryRepository:
    """A repository with one global."""
    repository = MemoryRepository()
    publish(repository, outer_step, scripted_weights(outer_step))
    return repository
