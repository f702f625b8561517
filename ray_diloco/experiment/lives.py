"""What a machine took with it when it died, or a node when it failed: local steps that were trained
and are in nothing that was kept. Those that were trained again, under the same numbers, are not
lost: the later training of them counts.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ray_diloco.protocol.fragments import cells_of_all, steps_of
from ray_diloco.protocol.ranges import NO_STEPS, StepRanges
from ray_diloco.protocol.run import Event

Accounts = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""By node id and nonce, what the master has merged and rejected; see `MasterReport`."""
Told = Mapping[tuple[str, str], StepRanges]
"""By node id and nonce, local steps that count as something else: dropped, unsent."""


@dataclass(frozen=True, slots=True)
class CrashLosses:
    """Local steps by node id; only nodes that have some. ``lost``: in vain. ``trained_again``: how
    many were trained once more, a step as often as it was.
    """

    lost: dict[str, int]
    trained_again: dict[str, int]


NO_CRASH_LOSSES = CrashLosses({}, {})


@dataclass(slots=True)
class _Incarnation:
    """Local steps of a nonce count on from ``first_step``. ``stands``: at which of them it was seen
    last; ``furthest``: the last that it ever trained. ``ended``: by a death or a failure of which
    the loss is not counted yet.
    """

    nonce: str
    first_step: int
    stands: int
    furthest: int
    ended: str | None = None

    def reach(self, local_step: int) -> None:
        self.stands = local_step
        self.furthest = max(self.furthest, local_step)


def crash_losses(
    events: Iterable[Event],
    accounts: Accounts | None,
    *,
    fragments: int = 1,
    told: Told | None = None,
) -> CrashLosses:
    """``events``: of the whole run, each participant's in order. ``accounts`` None: without a
    master's word it is not known what a node that did not go on has lost, so that it does not
    count. ``fragments``: into how many the model is cut; a step that one of them lacks is lost.
    """
    lives = _Lives(accounts, fragments, told or {})
    for event in events:
        match event["event"]:
            case "node_started":
                lives.begin(event)
            case "node_stopping":
                lives.stop(event)
            case "crashed" | "node_failed":
                lives.end(event)
            case "session_killed":
                lives.lose_records()
            case _:
                pass
    return lives.losses()


class _Lives:
    """Follows all nodes through their lives."""

    def __init__(self, accounts: Accounts | None, fragments: int, told: Told) -> None:
        self._accounts = accounts
        self._fragments = fragments
        self._told = told
        self._lost: Counter[str] = Counter()
        self._again: Counter[str] = Counter()
        self._newest: dict[str, _Incarnation] = {}
        self._records_lost = False

    def lose_records(self) -> None:
        """Incarnations may have been of which no event tells."""
        self._records_lost = True

    def begin(self, event: Event) -> None:
        node, resumed = event["participant"], event["resumed"]
        before = self._newest.get(node)
        if before is not None and before.nonce == event["nonce"] and resumed is not None:
            if before.ended is not None:
                self._again[node] += max(0, before.stands - resumed)
            before.ended = None
            before.reach(resumed)
            return
        if before is not None:
            self._count(node, before)
        if self._records_lost:
            known = before.furthest if before is not None else 0
            self._lost[node] += self._untold(node, known + 1, event.get("left_at", 0))
        first = event["first_step"]
        self._newest[node] = _Incarnation(event["nonce"], first, first, first)

    def stop(self, event: Event) -> None:
        incarnation = self._newest.get(event["participant"])
        if incarnation is not None:
            incarnation.reach(event["local_step"])

    def end(self, event: Event) -> None:
        """The first word of an end counts: its engine may tell of a failure too."""
        node, last_step = event["participant"], event["local_step"]
        incarnation = self._newest.get(node)
        if incarnation is not None and event.get("nonce", incarnation.nonce) != incarnation.nonce:
            return
        if incarnation is None:  # it claims no name and keeps nothing: role single
            if event["event"] == "crashed":
                self._lost[node] += last_step
        elif incarnation.ended is None:
            incarnation.reach(last_step)
            incarnation.ended = event["event"]

    def losses(self) -> CrashLosses:
        """Those that are dead for good included. What a failed node has lost is known when it goes
        on: until then all may be in its checkpoint.
        """
        for node, incarnation in self._newest.items():
            if incarnation.ended != "node_failed":
                self._count(node, incarnation)
        return CrashLosses(_some(self._lost), _some(self._again))

    def _count(self, node: str, incarnation: _Incarnation) -> None:
        """Nothing of it goes on. Who has ended well tells itself what became of the steps up to
        there; of what it had trained before it went back, the rest was never trained again.
        """
        not_again = incarnation.furthest - incarnation.stands
        self._again[node] -= min(not_again, self._again[node])
        if incarnation.ended is not None:
            self._lost[node] += self._uncovered(node, incarnation)
        else:
            self._lost[node] += not_again

    def _uncovered(self, node_id: str, incarnation: _Incarnation) -> int:
        """What the master has of it is all that is left."""
        if self._accounts is None:
            return 0
        account = self._accounts.get(node_id, {}).get(incarnation.nonce, {})
        gone = self._gone(incarnation.first_step + 1, incarnation.furthest, [account])
        return len(gone.minus(self._told.get((node_id, incarnation.nonce), NO_STEPS)))

    def _untold(self, node_id: str, first: int, last: int) -> int:
        """Steps that nobody told of but the claim of the name, under whatever nonce."""
        if self._accounts is None:
            return 0
        return len(self._gone(first, last, self._accounts.get(node_id, {}).values()))

    def _gone(self, first: int, last: int, accounts: Iterable[Mapping[str, Any]]) -> StepRanges:
        """Those of the steps that no account has."""
        gone = cells_of_all(StepRanges.of(first, last), self._fragments)
        for account in accounts:
            for name in ("merged", "rejected"):
                gone = gone.minus(StepRanges.parse(account.get(name, "")))
        return steps_of(gone)


def _some(counts: Counter[str]) -> dict[str, int]:
    return {node: count for node, count in sorted(counts.items()) if count}
