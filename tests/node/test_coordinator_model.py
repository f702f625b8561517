"""Random runs of the whole protocol around the real `Coordinator`, with counts for weights, and a
master that only adds up or that follows the real `OuterLoop`.

The hub loses answers and delays commits, the master cannot fetch or refuses some deltas, lanes are
slow, weights go bad, machines are lost; at the end every local step must count exactly once.
`World` takes any hub, master and node that have the few methods of those in the `scalar` modules.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from scalar_hub import NAN, FakeHub, State, Unit, plus
from scalar_master import Master, Round, SumMaster
from scalar_node import ModelNode, Upload
from scalar_outer_loop import LoopMaster

from ray_diloco.hub.repository import FileEntry
from ray_diloco.master.outer_loop import OuterLoop
from ray_diloco.node.coordinator import Actions, Coordinator
from ray_diloco.protocol.fragments import cells_of_all
from ray_diloco.protocol.global_card import GlobalCard
from ray_diloco.protocol.ranges import StepRanges
from ray_diloco.protocol.settings import DilocoSettings

POLICIES = ("rebase", "boundary", "replace")
MASTERS = (SumMaster, LoopMaster)


class World:
    """Three nodes, a hub and a master, moved by dice."""

    def __init__(
        self,
        seed: int,
        install: str,
        *,
        node_type: type[ModelNode] = ModelNode,
        master_type: Callable[[FakeHub, random.Random], Master] = SumMaster,
        fragments: int = 1,
    ) -> None:
        self._dice = dice = random.Random(seed)
        self.seed = seed
        self._node_type = node_type
        self._fragments = fragments
        self.hub = FakeHub(dice)
        if fragments > 1:
            card = replace(self.hub.published.card, fragment_steps=(0,) * fragments)
            self.hub.published = replace(self.hub.published, card=card)
        self.master = master_type(self.hub, dice)
        self.nodes = [self._node(f"n{i}", "0", self._settings(install)) for i in range(3)]
        self.lost: list[ModelNode] = []
        self._master_pace = dice.choice([0.2, 0.5, 0.9])

    def _settings(self, install: str) -> DilocoSettings:
        return DilocoSettings(
            install=install,
            inner_steps=self._dice.choice([1, 2, 3, 5]),
            poll_interval=1.0,
            async_delta_upload=self._dice.random() < 0.8,
            async_global_poll=self._dice.random() < 0.8,
            require_global=self._dice.random() < 0.8,
            max_bad_deltas=1000,
            fragments=self._fragments,
        )

    def _node(
        self, node_id: str, nonce: str, settings: DilocoSettings, first_step: int = 0
    ) -> ModelNode:
        return self._node_type(
            self.hub,
            self._dice,
            node_id=node_id,
            nonce=nonce,
            settings=settings,
            first_step=first_step,
        )

    def move(self) -> None:
        self.hub.pass_time()
        self._dice.choice(self.nodes).move()
        if self._dice.random() < self._master_pace:
            self.master.move()
        if self._dice.random() < 0.01:
            self.master.crash()
        if self._dice.random() < 0.003:
            self._lose(self._dice.choice(self.nodes))

    def _lose(self, node: ModelNode) -> None:
        """The node's machine is gone; another goes on under its name, knowing only its number."""
        self.lost.append(node)
        place, last = self.nodes.index(node), node.coordinator.local_step
        nonce = str(len(self.lost))
        self.nodes[place] = self._node(node.node_id, nonce, node.settings, last)

    def end(self) -> None:
        for _ in range(3000):
            self.hub.pass_time()
            left = [node.leave() for node in self.nodes]
            self.master.move()
            if all(left) and self.hub.quiet:
                return
        raise AssertionError("the run does not end")


def play(seed: int, install: str, **parts: Any) -> World:
    """A run from start to end, with other ``parts`` of a `World` perhaps."""
    world = World(seed, install, **parts)
    for _ in range(100 + seed % 200):
        world.move()
    world.end()
    return world


def violations(world: World) -> list[str]:
    """Local steps that are not covered exactly once, as merged, rejected or dropped."""
    published = world.hub.published
    found: list[str] = []
    made: set[Unit] = set()
    for node in world.nodes + world.lost:
        account = published.ledger.account(node.node_id, node.nonce)
        steps = StepRanges.of(node.first_step + 1, node.coordinator.local_step)
        units = node.units(cells_of_all(steps, node.fragments))
        made |= units.keys()
        held = Counter({unit: published.value[unit] for unit in units})
        counted = plus(held, node.units(account.rejected))
        counted = plus(counted, node.units(node.coordinator.tally.dropped))
        fewest = 0 if node in world.lost else 1
        found += [f"{u} counts {counted[u]} times" for u in units if not fewest <= counted[u] <= 1]
        if plus(held, node.units(account.merged), times=-1):
            found.append(f"{node.node_id} merged other steps than its deltas say")
        if node.settings.install != "replace" and not node.spoiled:
            found += [f"{step} was dropped" for step in node.coordinator.tally.dropped]
    found += [f"{unit} was never made" for unit in published.value.keys() - made]
    return [f"seed {world.seed}: {what}" for what in found]


def disorder(node: ModelNode) -> str | None:
    """What is wrong with a node's states between two moves."""
    own = plus(node.live, node.baseline, times=-1)
    own.pop(NAN, None)
    if own != node.units(node.coordinator.unsent.steps):
        return f"{node.node_id}: live - baseline is not what is unsent"
    doubled = [unit for unit, count in node.live.items() if count != 1 and unit != NAN]
    return f"{node.node_id}: {doubled} counts twice in the live model" if doubled else None


def find(problem: Callable[[int], object], *, seeds: int) -> object:
    """The first problem that any seed shows, or None."""
    return next((found for seed in range(seeds) if (found := problem(seed))), None)


def watch(seed: int, install: str, **parts: Any) -> str | None:
    """The first disorder in a node during a run."""
    world = World(seed, install, **parts)
    for _ in range(200):
        world.move()
        for node in world.nodes:
            if (wrong := disorder(node)) is not None:
                return f"seed {seed}: {wrong}"
    return None


@pytest.mark.parametrize("master", MASTERS)
@pytest.mark.parametrize("install", POLICIES)
def test_every_local_step_is_merged_once_or_rejected_or_counted_as_dropped(install: str, master):
    problem = find(lambda seed: violations(play(seed, install, master_type=master)), seeds=80)
    assert problem is None


@pytest.mark.slow
@pytest.mark.parametrize("master", MASTERS)
@pytest.mark.parametrize("install", POLICIES)
def test_thousands_of_runs_lose_and_double_nothing(install: str, master):
    problem = find(lambda seed: violations(play(seed, install, master_type=master)), seeds=1500)
    assert problem is None


@pytest.mark.parametrize("install", POLICIES)
def test_live_and_baseline_differ_by_what_is_unsent_at_every_moment(install: str):
    assert find(lambda seed: watch(seed, install), seeds=25) is None


@pytest.mark.parametrize("fragments", [2, 3])
def test_so_it_is_with_each_fragment_of_a_step(fragments: int):
    parts = {"master_type": LoopMaster, "fragments": fragments}
    assert find(lambda seed: violations(play(seed, "rebase", **parts)), seeds=60) is None
    assert find(lambda seed: watch(seed, "rebase", **parts), seeds=25) is None


@pytest.mark.slow
@pytest.mark.parametrize("fragments", [2, 3])
def test_thousands_of_runs_in_fragments_lose_and_double_nothing(fragments: int):
    parts = {"master_type": LoopMaster, "fragments": fragments}
    assert find(lambda seed: violations(play(seed, "rebase", **parts)), seeds=1000) is None


# -- the oracle sees what goes wrong ---------------------------------------------------------------


class ForgetsTheBaseline(ModelNode):
    def advance(self) -> None:
        pass


class ForgetsToFoldBack(ModelNode):
    def fold_back(self) -> None:
        pass


class ReplacesWhereItShouldRebase(ModelNode):
    def install(self, value: State, policy: str, fragments: Sequence[int]) -> None:
        super().install(value, policy.replace("rebase", "replace"), fragments)


class CallsAnUnknownOutcomeRefused(ModelNode):
    def _send(self, upload: Upload) -> None:
        upload.sent = False
        super()._send(upload)


class IgnoresTheReceipt(Coordinator):
    def _acknowledge(self, card: GlobalCard) -> Actions:
        return super()._acknowledge(replace(card, nodes={}))


class InstallsWithoutAReceipt(ModelNode):
    coordinator_type = IgnoresTheReceipt


class MergesWhatItKnows(SumMaster):
    heeds_the_ledger = False


class PublishesBlindly(SumMaster):
    def _publish(self, planned: Round) -> None:
        self._round = None
        self._hub.commit(lambda: self._replace(planned))

    def _replace(self, planned: Round) -> None:
        self._hub.published = planned.result
        for path in planned.merged:
            self._hub.deltas.pop(path, None)


@pytest.mark.parametrize(
    ("mutant", "install"),
    [
        *[(ForgetsTheBaseline, install) for install in POLICIES],
        *[(ForgetsToFoldBack, install) for install in ("boundary", "replace")],
        (ReplacesWhereItShouldRebase, "rebase"),
        *[(CallsAnUnknownOutcomeRefused, install) for install in POLICIES],
    ],
)
def test_a_node_that_breaks_a_rule_is_found_out(mutant: type[ModelNode], install: str):
    assert find(lambda seed: violations(play(seed, install, node_type=mutant)), seeds=40)


class MergesWhatTheLedgerHas(OuterLoop):
    def _is_stale(self, _: FileEntry) -> bool:
        return False


class ForgetsTheOrderOfANode(OuterLoop):
    def _in_order(self) -> list[FileEntry]:
        return [entry for entry in self._listing.values() if self._is_read(entry)]


class HeedsNoLedger(LoopMaster):
    loop_type = MergesWhatTheLedgerHas


class HeedsNoOrder(LoopMaster):
    loop_type = ForgetsTheOrderOfANode


@pytest.mark.parametrize(
    "mutant", [MergesWhatItKnows, PublishesBlindly, HeedsNoLedger, HeedsNoOrder]
)
def test_a_master_that_breaks_a_rule_is_found_out(mutant: type[Master]):
    assert find(lambda seed: violations(play(seed, "rebase", master_type=mutant)), seeds=40)


class NumbersByStep(ModelNode):
    """All last deltas of a node get one number."""

    def _move_upload(self, upload: Upload) -> None:
        self._number = -1
        super()._move_upload(upload)


def test_the_last_deltas_of_a_node_need_numbers_of_their_own():
    parts = {"node_type": NumbersByStep, "master_type": LoopMaster, "fragments": 2}
    with pytest.raises(AssertionError, match="does not end"):
        find(lambda seed: violations(play(seed, "rebase", **parts)), seeds=40)


def test_a_node_that_ignores_the_receipt_trains_on_doubled_steps():
    parts = {"node_type": InstallsWithoutAReceipt}
    assert find(lambda seed: watch(seed, "rebase", **parts), seeds=40)
