"""A node at a hub that is away, lags, or counts commits: what its lanes do about it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ray_diloco.errors import HubError, NodeInUseError, QuotaExceeded, TransientHubError
from ray_diloco.hub.limits import RetryPolicy
from ray_diloco.hub.memory import MemoryRepository
from ray_diloco.hub.patience import Retry
from ray_diloco.node.actions import Job, StartUpload
from ray_diloco.node.coordinator import Coordinator
from ray_diloco.node.exchange import Exchange
from ray_diloco.node.polling import Polled
from ray_diloco.node.weights import Weights
from ray_diloco.protocol.clock import Access, Lane, Micros, Sleep, micros
from ray_diloco.protocol.global_card import GlobalCard, NodeRow
from ray_diloco.protocol.ranges import StepRanges
from ray_diloco.protocol.seeds import seeded
from ray_diloco.protocol.settings import DilocoSettings
from ray_diloco.protocol.work import Work

POLICY = RetryPolicy(
    first=micros(1), longest=micros(8), deadline=micros(60), quota_longest=micros(3600)
)


class HandClock:
    def __init__(self) -> None:
        self.time = 0

    def now(self) -> Micros:
        return Micros(self.time)

    def utc(self) -> str:
        return "2030-01-01T00:00:00.000000+00:00"


class Weather(MemoryRepository):
    """A repository that answers ``commit`` and ``head_commit`` as it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.on_commit: list[HubError] = []
        self.landed_all_the_same = False
        self.lags: list[str] = []

    def commit(self, message: str, **changes: Any) -> str:
        if not self.on_commit:
            return super().commit(message, **changes)
        error = self.on_commit.pop(0)
        if self.landed_all_the_same:
            super().commit(message, **changes)
        raise error

    def head_commit(self) -> str:
        return self.lags.pop(0) if self.lags else super().head_commit()


class Scene:
    def __init__(self, folder: Path, commits_per_hour: int | None = None) -> None:
        self.clock = HandClock()
        self.repository = Weather()
        model = nn.Linear(3, 2)
        weights = Weights(model, codec="fp32", mismatch="error")
        with torch.no_grad():
            model.weight.add_(1.0)
        weights.take_snapshot()
        self.exchange = Exchange(
            node_id="a",
            nonce="n",
            run_id="r",
            inner_steps=4,
            repository=self.repository,
            weights=weights,
            retry=Retry(POLICY, seeded(0, "a", "retry"), self.clock),
            clock=self.clock,
            state_dir=folder,
            commits_per_hour=commits_per_hour,
        )

    def finish(self, lane: Lane, *, patience: int = 1000) -> Any:
        """What a lane returns, in no time but its own. TimeoutError when it goes on and on."""
        result: Any = None
        error: Exception | None = None
        for _ in range(patience):
            try:
                effect = lane.send(result) if error is None else lane.throw(error)
            except StopIteration as end:
                return end.value
            result, error = None, None
            if isinstance(effect, Sleep):
                self.clock.time += effect.duration
            elif isinstance(effect, Access):
                result, error = outcome_of(effect.call)
        raise TimeoutError

    def upload(self, **options: Any) -> Any:
        work = Work(steps=StepRanges.of(1, 4), tokens=4, loss_sum=1.0)
        job = Job(local_step=4, work=work, base_outer_step=0, oldest_base_outer_step=0, final=False)
        return self.finish(self.exchange.upload(job, encoded=lambda: None), **options)


def outcome_of(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return call(), None
    except Exception as error:
        return None, error


def busy() -> TransientHubError:
    return TransientHubError("POST: 409", "refused")


def lost() -> TransientHubError:
    return TransientHubError("POST: reset", "unknown")


def test_passing_refusals_are_outlasted(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.repository.on_commit = [busy() for _ in range(5)]
    assert scene.upload().outcome == "landed"


def test_a_delta_that_is_not_accepted_within_the_deadline_is_given_back(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.repository.on_commit = [busy() for _ in range(1000)]
    assert scene.upload().outcome == "refused"
    assert micros(50) < scene.clock.now() < micros(80)


def test_a_quota_is_waited_out_and_the_delta_given_back_for_a_newer_one(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.repository.on_commit = [QuotaExceeded("POST: 429", micros(900))]
    assert scene.upload().outcome == "refused"
    assert scene.clock.now() >= micros(900)


def test_a_delta_whose_fate_is_unknown_is_never_given_back(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.repository.on_commit = [lost() for _ in range(10_000)]
    with pytest.raises(TimeoutError):
        scene.upload(patience=3000)
    assert scene.clock.now() > micros(600)


def test_a_commit_that_landed_without_an_answer_counts_as_landed(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.repository.on_commit = [lost()]
    scene.repository.landed_all_the_same = True
    assert scene.upload().outcome == "landed"
    assert scene.repository.traffic.commits == 1


def test_a_claim_that_a_late_lookup_does_not_show_is_looked_for_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    empty = scene.repository.head_commit()
    scene.repository.lags = [empty, empty, empty]
    assert scene.finish(scene.exchange.claim(takeover=False)).nonce == "n"


def test_a_claim_that_never_shows_is_not_ours(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.repository.lags = [scene.repository.head_commit()] * 1000
    with pytest.raises(NodeInUseError):
        scene.finish(scene.exchange.claim(takeover=False))


def test_a_poll_at_a_hub_that_is_away_finds_nothing_and_is_no_error(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    def away(_path: str) -> None:
        raise TransientHubError("HEAD: ConnectError", "refused")

    scene.repository.head = away  # type: ignore[method-assign]
    assert scene.finish(scene.exchange.poll(seen=(-1, -1), anew=False)) == Polled(troubled=True)


def test_a_node_that_has_spent_its_share_may_send_again_when_its_turn_comes(
    tmp_path: Path,
) -> None:
    scene = Scene(tmp_path, commits_per_hour=100)
    scene.finish(scene.exchange.claim(takeover=False))
    assert scene.exchange.may_send()
    scene.upload()
    assert not scene.exchange.may_send()
    scene.clock.time += micros(3600 / 50)
    assert scene.exchange.may_send()


def test_a_boundary_without_room_in_the_budget_is_skipped_and_goes_out_with_the_next() -> None:
    coordinator = Coordinator(DilocoSettings(inner_steps=2), node_id="a", nonce="n")
    coordinator.fetched(GlobalCard(outer_step=0, nodes={"a": NodeRow(**ROW)}))
    coordinator.settle(now=Micros(0))

    def step(*, may_send: bool) -> list[Any]:
        actions = coordinator.stepped(now=Micros(0), tokens=1, loss=1.0, may_send=may_send)
        return [each for each in actions if isinstance(each, StartUpload)]

    assert [step(may_send=False) for _ in range(2)] == [[], []]
    assert coordinator.tally.skipped_boundaries == 1
    step(may_send=True)
    (upload,) = step(may_send=True)
    assert str(upload.job.work.steps) == "1-4"


ROW: dict[str, Any] = {"nonce": "n", "last_local_step": 0, "seen_outer_step": 0}
