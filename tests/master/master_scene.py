"""A master with its whole machinery, a small model, and scripted nodes."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from ray_diloco.hub.limits import RetryPolicy
from ray_diloco.hub.patience import Retry
from ray_diloco.hub.repository import Addition, Repository
from ray_diloco.master.master import Master
from ray_diloco.protocol.clock import (
    Access,
    Compute,
    Effect,
    Idle,
    Lane,
    LaneOutcome,
    Micros,
    Sleep,
)
from ray_diloco.protocol.delta_card import DeltaCard
from ray_diloco.protocol.global_card import CARD_LIMIT, GlobalCard
from ray_diloco.protocol.node_card import NodeCard
from ray_diloco.protocol.paths import CARD_PATH, delta_path, node_card_path
from ray_diloco.protocol.ranges import StepRanges
from ray_diloco.protocol.run import MasterReport, RunIdentity, RunLimits
from ray_diloco.protocol.settings import DilocoSettings
from ray_diloco.tensors.fragments import split
from ray_diloco.tensors.schema import StateSchema

RUN = RunIdentity(run_id="run", config_hash="c" * 64, seed=0)
POLICY = RetryPolicy(
    first=Micros(1000), longest=Micros(5000), deadline=Micros(2_000_000), quota_longest=Micros(1000)
)
QUICK: dict[str, Any] = {"poll_interval": 0.05, "node_timeout": 3600.0, "outer_lr": 0.5}


def model() -> dict[str, torch.Tensor]:
    """Every kind of entry: full and half precision, statistics, an integer."""
    generator = torch.Generator().manual_seed(7)
    return {
        "w": torch.randn(4, 3, generator=generator),
        "h": torch.randn(5, generator=generator).bfloat16(),
        "bn.running_var": torch.rand(2, generator=generator) + 1,
        "count": torch.tensor(3),
    }


SCHEMA = StateSchema.of_state(model(), statistics=["bn.running_var"])


def tensors_of(seed: int) -> dict[str, torch.Tensor]:
    """A sound pseudo-gradient."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "w": torch.randn(4, 3, generator=generator) / 8,
        "h": torch.randn(5, generator=generator) / 8,
        "bn.running_var": torch.rand(2, generator=generator) / 8,
    }


def card_of(node_id: str, step: int, *, base: int = 0, **fields: Any) -> DeltaCard:
    first = step - fields.pop("steps", 10) + 1
    return DeltaCard(
        node_id=node_id,
        local_step=step,
        base_outer_step=base,
        **{"nonce": f"nonce-{node_id}", "covers": StepRanges.of(first, step), "tokens": 10}
        | fields,
    )


def delta(node_id: str, step: int, **fields: Any) -> Addition:
    """A sound delta, drawn from its name; of one fragment when the fields say so."""
    seed = sum(node_id.encode()) * 1000 + step
    card = card_of(node_id, step, **fields)
    part = split(SCHEMA, card.fragments)[card.fragment or 0]
    tensors = {entry.name: tensors_of(seed)[entry.name] for entry in part.floating}
    content = save(tensors, metadata=_header(card))
    return Addition(path=delta_path(node_id, step), source=content)


def _header(card: DeltaCard) -> dict[str, str]:
    header = card.header()
    if card.sha256 is None:
        del header["sha256"]
    return header


def claim(node_id: str, state: Any = "active", *, nonce: str | None = None) -> Addition:
    found = NodeCard(nonce=nonce or f"nonce-{node_id}", started="", state=state, run_id="run")
    return Addition(path=node_card_path(node_id), source=found.to_json())


def send(repository: Repository, *additions: Addition) -> None:
    repository.commit("a node", additions=additions)


def published(repository: Repository) -> GlobalCard:
    commit = repository.head_commit()
    return GlobalCard.from_json(repository.read(CARD_PATH, commit=commit, limit=CARD_LIMIT))


def deltas_listed(repository: Repository) -> list[str]:
    entries = repository.list_files("nodes", commit=repository.head_commit())
    return [entry.path for entry in entries if entry.path.endswith(".safetensors")]


class InlinePort:
    """Time for one participant in one thread: nothing waits, everything happens in order.

    ``on_idle`` is called whenever a lane begins to idle: the other participants act there.
    """

    def __init__(self, on_idle: Callable[[], None] | None = None) -> None:
        self._on_idle = on_idle or (lambda: None)
        self._now = 0
        self._lanes: dict[str, tuple[int, Lane, Any]] = {}
        self._finished: list[LaneOutcome] = []

    def now(self) -> Micros:
        return Micros(self._now)

    def utc(self) -> str:
        return f"2000-01-01T00:00:{self._now / 1e6:09.6f}Z"

    def start(self, name: str, lane: Lane) -> None:
        assert name not in self._lanes
        self._lanes[name] = (self._now, lane, None)

    def collect(self) -> list[LaneOutcome]:
        finished, self._finished = self._finished, []
        return finished

    def wait(self, until: Micros | None = None) -> None:
        while not self._finished:
            name = min(self._lanes, key=lambda each: self._lanes[each][0], default=None)
            if name is None or (until is not None and self._lanes[name][0] > until):
                assert until is not None, "nothing can ever happen"
                self._now = max(self._now, until)
                return
            due, lane, result = self._lanes[name]
            self._now = max(self._now, due)
            self._go_on(name, lane, result)

    def _go_on(self, name: str, lane: Lane, result: Any) -> None:
        del self._lanes[name]
        try:
            effect = lane.throw(result) if isinstance(result, Exception) else lane.send(result)
        except StopIteration as end:
            self._end(name, end.value, None)
        except Exception as error:
            self._end(name, None, error)
        else:
            pause, answer = self._perform(effect)
            self._lanes[name] = (self._now + pause, lane, answer)

    def _perform(self, effect: Effect) -> tuple[int, Any]:
        try:
            match effect:
                case Access():
                    return 0, effect.call()
                case Compute():
                    return 0, effect.work() if effect.work is not None else None
                case Sleep():
                    return effect.duration, None
                case Idle():
                    self._on_idle()
                    left = effect.interval if effect.until is None else effect.until - self._now
                    return max(0, min(effect.interval, left)), None
                case _:
                    return 0, None
        except Exception as error:
            return 0, error

    def _end(self, name: str, value: Any, error: Exception | None) -> None:
        self._finished.append(
            LaneOutcome(name=name, value=value, error=error, finished_at=self.now())
        )

    def interrupt(self) -> None:
        pass

    def close(self) -> None:
        for _, lane, _ in self._lanes.values():
            lane.close()

    def before_step(self, quiet_steps: int, quiet_until: Micros | None = None) -> None:
        raise NotImplementedError("a master takes no local step")

    def after_step(self) -> None:
        raise NotImplementedError("a master takes no local step")


def master_of(
    repository: Repository,
    state_dir: Path,
    *,
    port: Any = None,
    master_id: str = "m",
    expected: tuple[str, ...] = (),
    resume: bool = False,
    standby: bool = False,
    squash_every: int = 0,
    record: Callable[..., None] = lambda *_, **__: None,
    run: RunIdentity = RUN,
    max_tokens: int | None = None,
    **settings: Any,
) -> Master:
    port = port or InlinePort()
    return Master(
        master_id=master_id,
        run=run,
        limits=RunLimits(max_tokens=max_tokens),
        settings=DilocoSettings(**QUICK | settings),
        expected=expected,
        resume=resume,
        standby=standby,
        squash_every=squash_every,
        initial=model(),
        schema=SCHEMA,
        evaluator=None,
        repository=repository,
        retry=Retry(POLICY, random.Random(0), port),
        port=port,
        record=record,
        state_dir=state_dir,
    )


def lead(repository: Repository, state_dir: Path, **options: Any) -> MasterReport:
    """A whole master, until every node is done."""
    return master_of(repository, state_dir, **options).run()


def merged_of(report: MasterReport) -> dict[str, str]:
    """Ranges of local steps that the global contains, by node."""
    return {
        node_id: ",".join(account["merged"] for account in nonces.values() if account["merged"])
        for node_id, nonces in report.accounts.items()
    }
