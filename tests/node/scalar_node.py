"""A node of the scalar model: the real `Coordinator`, with counts for weights and lanes by hand."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scalar_hub import NAN, DeltaFile, FakeHub, Published, State, plus

from ray_diloco.node.actions import (
    Action,
    AdvanceBaseline,
    Fail,
    FoldBack,
    InstallGlobal,
    Job,
    StartPoll,
    StartUpload,
)
from ray_diloco.node.coordinator import Actions, Coordinator
from ray_diloco.protocol.clock import Micros
from ray_diloco.protocol.delta_card import DeltaCard
from ray_diloco.protocol.fragments import STRIDE, cells_of_all
from ray_diloco.protocol.paths import delta_path
from ray_diloco.protocol.ranges import StepRanges
from ray_diloco.protocol.settings import DilocoSettings


@dataclass(kw_only=True)
class Upload:
    """The upload lane: `written` and `sent` are as far as it is, `outcome` its end."""

    job: Job
    snapshot: State
    written: bool = False
    told: bool = False
    sent: bool = False
    outcome: Literal["landed", "refused", "not finite"] | None = None


def of_fragments(fragments: Sequence[int], state: State) -> State:
    """What these fragments of a state hold; all of them show that a step went wrong."""
    kept = [unit for unit in state if unit == NAN or unit[2] // STRIDE in fragments]
    return Counter({unit: 1 if unit == NAN else state[unit] for unit in kept})


@dataclass(kw_only=True)
class Poll:
    known: tuple[int, int]
    anew: bool
    found: Published | None = None


class ModelNode:
    """One incarnation: carries out what its coordinator decides, lanes moving beside it."""

    coordinator_type: type[Coordinator] = Coordinator

    def __init__(
        self,
        hub: FakeHub,
        dice: random.Random,
        *,
        node_id: str,
        nonce: str,
        settings: DilocoSettings,
        first_step: int = 0,
    ) -> None:
        self._hub = hub
        self._dice = dice
        self._now = Micros(0)
        self._paces = dice.choices([0.1, 0.4, 0.9], k=4)
        self.node_id = node_id
        self.nonce = nonce
        self.settings = settings
        self.fragments = settings.fragments
        self.first_step = first_step
        self.coordinator = self.coordinator_type(
            settings, node_id=node_id, nonce=nonce, first_step=first_step
        )
        self.live: State = Counter()
        self.baseline: State = Counter()
        self.spoiled = False
        self._file: State = Counter()
        self._number = first_step
        self._fetched: Published | None = None
        self._upload: Upload | None = None
        self._poll: Poll | None = None

    def units(self, steps: StepRanges) -> State:
        return Counter({(self.node_id, self.nonce, step): 1 for step in steps})

    # what happens

    def move(self) -> None:
        acts = (self.train, self.go_on_uploading, self.go_on_polling, self.deliver)
        for act, pace in zip(acts, self._paces, strict=True):
            if self._dice.random() < pace:
                act()

    def train(self) -> None:
        """One step if the node may, with lanes that end while it is computed."""
        self._now = Micros(self._now + self._dice.randrange(500_000))
        if self.coordinator.waits_for is not None:
            self.perform(self.coordinator.settle(now=self._now))
            return
        step = self.coordinator.local_step + 1
        self.live.update(self.units(cells_of_all(StepRanges.of(step, step), self.fragments)))
        if self._dice.random() < 0.01:
            self.live[NAN] += 1
            self.spoiled = True
        if self._dice.random() < 0.5:
            self.deliver()
        self.perform(self.coordinator.stepped(now=self._now, tokens=1, loss=1.0))

    def go_on_uploading(self) -> None:
        if self._upload is not None and self._upload.outcome is None:
            self._move_upload(self._upload)

    def go_on_polling(self) -> None:
        if self._poll is not None and self._poll.found is None:
            self._poll.found = self._hub.published

    def deliver(self) -> None:
        upload, poll = self._upload, self._poll
        if upload is not None and upload.written and not upload.told:
            upload.told = True
            self.perform(self.coordinator.encoded(self._number))
        if upload is not None and upload.outcome is not None:
            self._upload = None
            self.perform(self._ended(upload.outcome))
        if poll is not None and poll.found is not None:
            self._poll = None
            self.perform(self._found(poll, poll.found))

    def leave(self) -> bool:
        """Send what is left; whether nothing is."""
        self.go_on_uploading()
        self.go_on_polling()
        self.deliver()
        if not self.coordinator.uploading:
            self.perform(self.coordinator.finish())
        return not self.coordinator.uploading and not self.coordinator.unsent

    # the lanes

    def _move_upload(self, upload: Upload) -> None:
        if not upload.written:
            change = plus(upload.snapshot, self.baseline, times=-1)
            self._file = of_fragments([upload.job.place], change)
            least = 0 if upload.job.fragment is None else self._number + 1
            self._number = max(upload.job.local_step, least)
            upload.written = True
        elif NAN in self._file:
            upload.outcome = "not finite"
        else:
            self._send(upload)

    def _send(self, upload: Upload) -> None:
        job = upload.job
        path = delta_path(self.node_id, self._number)
        card = DeltaCard(
            node_id=self.node_id,
            local_step=self._number,
            base_outer_step=job.base_outer_step,
            nonce=self.nonce,
            covers=job.work.steps,
            fragment=job.fragment,
            fragments=self.fragments,
        )
        file = DeltaFile(card=card, content=self._file)
        if upload.sent and self._is_there(path, card):
            upload.outcome = "landed"
            return
        answer = self._hub.commit(lambda: self._hub.deltas.update({path: file}))
        if answer == "landed" or (answer == "refused" and not upload.sent):
            upload.outcome = answer
        elif answer == "unknown":
            upload.sent = True

    def _is_there(self, path: str, card: DeltaCard) -> bool:
        ledger = self._hub.published.ledger
        return path in self._hub.deltas or ledger.has(card, path=path, blob_id="")

    def _ended(self, outcome: Literal["landed", "refused", "not finite"]) -> Actions:
        match outcome:
            case "landed":
                return self.coordinator.landed()
            case "refused":
                return self.coordinator.refused("409")
            case "not finite":
                return self.coordinator.spoiled("not finite")

    def _found(self, poll: Poll, found: Published) -> Actions:
        version = found.card.version
        if version > poll.known or (poll.anew and version == poll.known):
            self._fetched = found
            return self.coordinator.fetched(found.card)
        return self.coordinator.nothing_new(found.card)

    # the actions

    def perform(self, actions: Actions) -> None:
        for action in actions:
            self._carry_out(action)

    def _carry_out(self, action: Action) -> None:
        match action:
            case StartUpload(job):
                assert self._upload is None, "one upload at a time"
                self._upload = Upload(job=job, snapshot=Counter(self.live))
            case StartPoll(anew):
                assert self._poll is None, "one poll at a time"
                self._poll = Poll(known=self.coordinator.known, anew=anew)
            case InstallGlobal(card, policy, fragments):
                assert self._fetched is not None
                assert self._fetched.card == card, "weights and metadata are of one global"
                taken = range(self.fragments) if fragments is None else fragments
                self.install(self._fetched.value, policy, taken)
            case AdvanceBaseline():
                self.advance()
            case FoldBack():
                self.fold_back()
            case Fail(message):
                raise AssertionError(message)
            case _:
                pass

    def install(self, value: State, policy: str, fragments: Sequence[int]) -> None:
        others = [each for each in range(self.fragments) if each not in fragments]
        own = plus(self.live, self.baseline, times=-1) if policy == "rebase" else Counter()
        new = of_fragments(fragments, plus(value, own))
        self.live = plus(of_fragments(others, self.live), new)
        value = of_fragments(fragments, value)
        self.baseline = plus(of_fragments(others, self.baseline), value)

    def advance(self) -> None:
        self.baseline = plus(self.baseline, self._file)

    def fold_back(self) -> None:
        self.live = plus(self.live, self._file)
