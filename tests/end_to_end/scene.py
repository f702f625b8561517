"""Real participants in virtual time, around any model and any batches, and a test among them.

They are built from plans as every engine builds them. The test may take part itself: it acts and
looks as a participant of its own, and lets time pass.
"""

import functools
import json
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from safetensors.torch import load, save
from torch import nn

from ray_diloco.cluster.hub_service import HubAccess
from ray_diloco.experiment.build import build_plans, complete
from ray_diloco.experiment.conf_folder import conf_dir
from ray_diloco.experiment.reading import read_config
from ray_diloco.experiment.schema import Config
from ray_diloco.hub.connect import connect
from ray_diloco.hub.memory import MemoryStore
from ray_diloco.hub.repository import Addition, Repository
from ray_diloco.master.build import Prepared as PreparedMaster
from ray_diloco.master.build import build_master
from ray_diloco.node.build import Prepared as PreparedNode
from ray_diloco.node.build import build_node
from ray_diloco.node.trainer import Trainer
from ray_diloco.protocol.clock import Access, micros
from ray_diloco.protocol.delta_card import DeltaCard
from ray_diloco.protocol.events import EventLog
from ray_diloco.protocol.global_card import CARD_LIMIT, GlobalCard
from ray_diloco.protocol.paths import CARD_PATH, delta_path
from ray_diloco.protocol.ranges import StepRanges
from ray_diloco.protocol.run import Event, RunIdentity, RunLimits
from ray_diloco.protocol.settings import DilocoSettings
from ray_diloco.tensors.schema import StateSchema
from ray_diloco.timing.profile import NodeProfile
from ray_diloco.timing.virtual import VirtualClock
from ray_diloco.workload.data import Corpus, build_data
from ray_diloco.workload.settings import InnerSettings

RUN = RunIdentity(run_id="run-1", config_hash="0" * 64, seed=0)
INNER = InnerSettings(learning_rate=0.05, warmup_steps=0, schedule="constant")
IN_MEMORY = HubAccess(repo_id="local/run-1")
PATIENCE = 60.0
PEERS_CARD = {
    "algorithm": "dumb_diloco",
    "model_file": "global/latest.safetensors",
    "optimizer": "nesterov_sgd",
    "updated_at": "2030-01-01T00:00:00+00:00",
}

State = dict[str, torch.Tensor]


def configure(*overrides: str) -> Config:
    """The configuration that these overrides lead to."""
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return complete(read_config(compose("config", list(overrides))))


@functools.cache
def _configuration(hub: str) -> Config:
    small = ("debug=default", "data=synthetic", "data.synthetic_bytes=20000")
    return configure(*small, f"hub={hub}")


@functools.cache
def _corpus() -> Corpus:
    return build_data(_configuration("memory").data)


class PowerCut(Exception):
    """What ends a participant that dies."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One participant: what it leaves, or what ended it."""

    name: str
    log: EventLog
    model: nn.Module
    left: list[Any]
    errors: list[BaseException]

    @functools.cached_property
    def events(self) -> list[Event]:
        return self.log.drain()

    @property
    def report(self) -> Any:
        if self.errors:
            raise self.errors[0]
        return self.left[0]


class Scene:
    """A repository, a clock, and participants: add them, `start` them together, then `join`."""

    def __init__(
        self,
        folder: Path,
        build: Callable[[], nn.Module],
        settings: DilocoSettings,
        *,
        access: HubAccess = IN_MEMORY,
    ) -> None:
        """``build`` gives the same weights at each call. ``access``: to a hub that serves."""
        self.folder = folder
        self.build = build
        self.settings = settings
        self._config = _configuration("memory" if access is IN_MEMORY else "embedded")
        self._store = MemoryStore()
        self._access = access
        self.clock = VirtualClock([])
        self.parts: dict[str, Part] = {}
        self._waiting: list[threading.Thread] = []
        self._threads: list[threading.Thread] = []
        self.clock.register("test")
        self._port = self.clock.port("test")

    # -- participants ------------------------------------------------------------------------------

    def add_node(
        self,
        node_id: str,
        batches: Iterable[Any],
        *,
        steps: int | None = None,
        profile: NodeProfile | None = None,
        inner: InnerSettings = INNER,
        nonce: str = "",
        **changed: Any,
    ) -> Part:
        """A node that ends after ``steps``; ``changed``: other fields of its plan."""
        plan = replace(
            self._plans((node_id,)).nodes[0],
            diloco=self.settings,
            inner=inner,
            **({"limits": RunLimits(max_steps=steps)} | changed),
        )
        self.clock.register(node_id, self._port.now())
        port = self.clock.port(node_id, profile=profile or NodeProfile())
        log, model = EventLog(node_id, port), self.build()
        prepared = PreparedNode(corpus=_corpus(), trainer=Trainer(model, batches, inner))
        node = build_node(
            plan,
            prepared,
            nonce=nonce or f"nonce-{node_id}",
            port=port,
            record=log.record,
            store=self._store,
        )
        return self._add(node_id, node.run, log, model)

    def add_master(
        self,
        name: str = "m",
        *,
        expected: Sequence[str] = (),
        dies_at: str | None = None,
        **changed: Any,
    ) -> Part:
        """A master that waits for the ``expected`` nodes; ``changed``: other fields of its plan.
        ``dies_at``: the first event of this name is its last.
        """
        plan = self._plans(("n0",)).master
        assert plan is not None
        plan = replace(
            plan,
            master_id=name,
            expected=tuple(expected),
            diloco=self.settings,
            **({"state_dir": self.folder / name, "limits": RunLimits()} | changed),
        )
        self.clock.register(name, self._port.now())
        port = self.clock.port(name)
        log, model = EventLog(name, port), self.build()
        initial = {key: value.clone() for key, value in model.state_dict().items()}
        prepared = PreparedMaster(initial=initial, schema=StateSchema.of(model), evaluator=None)

        def record(event: str, **fields: Any) -> None:
            log.record(event, **fields)
            if event == dies_at and fields.get("deltas"):
                raise PowerCut(name)

        master = build_master(plan, prepared, port=port, record=record, store=self._store)
        return self._add(name, master.run, log, model)

    def _plans(self, node_ids: tuple[str, ...]) -> Any:
        cluster = replace(self._config.cluster, nodes=len(node_ids), node_ids=list(node_ids))
        config = replace(self._config, cluster=cluster)
        return build_plans(config, RUN, self._access, self.folder)

    def _add(self, name: str, run: Callable[[], Any], log: EventLog, model: nn.Module) -> Part:
        part = Part(name=name, log=log, model=model, left=[], errors=[])
        self.parts[name] = part

        def body() -> None:
            try:
                part.left.append(run())
            except BaseException as error:
                part.errors.append(error)

        self._waiting.append(threading.Thread(target=body, name=name, daemon=True))
        return part

    def start(self) -> None:
        """Let those go that were added since the last time."""
        waiting, self._waiting = self._waiting, []
        for thread in waiting:
            thread.start()
        self._threads += waiting

    def join(self) -> None:
        """The test leaves; wait for everybody else to end, well or not."""
        self._port.close()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), f"{thread.name} hangs"

    # -- the test as a participant -----------------------------------------------------------------

    def repository(self) -> Repository:
        """Another handle on the repository."""
        access = self._access
        return connect(
            self._config.hub,
            repo_id=access.repo_id,
            endpoint=access.endpoint,
            token=access.token,
            store=self._store,
        )

    def act(self, call: Callable[[], Any]) -> Any:
        """Access the repository at the present time, such as with a commit."""

        def lane() -> Generator[Access, Any, Any]:
            return (yield Access(call))

        self._port.start("act", lane())
        self._port.wait()
        (outcome,) = self._port.collect()
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def pass_seconds(self, seconds: float) -> None:
        """Let the others do what they do in so much virtual time."""
        self._port.wait(micros(seconds) + self._port.now())  # type: ignore[arg-type]

    def put_delta(
        self,
        node_id: str,
        local_step: int,
        tensors: State,
        *,
        base: int = 0,
        nonce: str | None = "nonce",
        covers: str | None = None,
    ) -> str:
        """Commit a delta as a node would, or without a nonce as a plain peer; gives its path."""
        path = delta_path(node_id, local_step)
        content = delta_bytes(tensors, node_id, local_step, base=base, nonce=nonce, covers=covers)
        self.act(lambda: self.repository().commit(path, additions=[addition(path, content)]))
        return path

    def publish_as_a_peer(
        self, *, weights: State | None = None, card: dict[str, Any] | None = None
    ) -> None:
        """A plain peer's master publishes weights first and metadata after them, in two commits."""
        if weights is not None:
            model = addition("global/latest.safetensors", save(weights))
            self.act(lambda: self.repository().commit("model", additions=[model]))
        if card is not None:
            metadata = addition(CARD_PATH, json.dumps(PEERS_CARD | card).encode())
            self.act(lambda: self.repository().commit("metadata", additions=[metadata]))

    def card(self) -> GlobalCard:
        """The newest global's metadata."""

        def read() -> bytes:
            repository = self.repository()
            head = repository.head_commit()
            return repository.read(CARD_PATH, commit=head, limit=CARD_LIMIT)

        return GlobalCard.from_json(self.act(read))

    def weights(self) -> State:
        """The newest global."""

        def read() -> bytes:
            repository = self.repository()
            file = self.folder / "newest.safetensors"
            repository.fetch(
                "global/latest.safetensors", commit=repository.head_commit(), destination=file
            )
            return file.read_bytes()

        return load(self.act(read))

    def paths(self, folder: str = "nodes") -> list[str]:
        """What lies below a folder of the repository."""

        def read() -> list[str]:
            repository = self.repository()
            entries = repository.list_files(folder, commit=repository.head_commit())
            return [entry.path for entry in entries]

        return self.act(read)


@contextmanager
def playing(scene: Scene) -> Generator[Scene, None, None]:
    """Start those who were added, and join all at the end; whose errors matter asks their part."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    scene.start()
    try:
        yield scene
    finally:
        scene.join()
        torch.set_num_threads(before)


def delta_bytes(
    tensors: State,
    node_id: str,
    local_step: int,
    *,
    base: int = 0,
    nonce: str | None = "nonce",
    covers: str | None = None,
) -> bytes:
    """A delta file without a hash of its payload."""
    card = DeltaCard(
        node_id=node_id,
        local_step=local_step,
        base_outer_step=base,
        nonce=nonce,
        covers=StepRanges.parse(covers) if covers else None,
    )
    header = {name: value for name, value in card.header().items() if name != "sha256"}
    return save(tensors, metadata=header)


def addition(path: str, content: bytes) -> Addition:
    return Addition(path=path, source=content)


def rounds_of(part: Part) -> list[list[tuple[str, int]]]:
    """Node and step of each merged delta, round by round."""
    published = [each["deltas"] for each in part.events if each["event"] == "publication"]
    return [[(d["node"], d["local_step"]) for d in deltas] for deltas in published if deltas]


def refusals_of(part: Part) -> list[str]:
    """Why deltas were refused."""
    return [reason for each in part.events for reason in each.get("refused", ())]
