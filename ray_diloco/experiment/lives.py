"""What a machine took with it when it died, or a node when it failed: local steps that were trained
and are in nothing that was kept. Most are trained again, under the same numbers.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ray_diloco.protocol.fragments import cells_of_all, steps_of
from ray_diloco.protocol.ranges import StepRanges
from ray_diloco.protocol.run import Event

Accounts = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""By node id and nonce, what the master has merged and rejected; see `MasterReport`."""


@dataclass(frozen=True, slots=True)
class _Incarnation:
    """Local steps of a nonce count on from ``first_step``."""

    nonce: str
    first_step: int


def crash_losses(
    events: Iterable[Event], accounts: Accounts | None, *, fragments: int = 1
) -> dict[str, int]:
    """How many local steps each node trained in vain, by node id; only nodes that lost some.
    ``events``: of the whole run, each participant's in order. ``accounts`` None: without a master's
    word it is not known what a node that did not go on has lost, so that it does not count.
    ``fragments``: into how many the model is cut; a step that one of them lacks is lost.
    """
    lives = _Lives(accounts, fragments)
    for event in events:
        match event["event"]:
            case "node_started":
                lives.begin(event)
            case "crashed":
                lives.end(event)
            case "node_failed":
                lives.fail(event)
            case _:
                pass
    return lives.lost()


class _Lives:
    """Follows all nodes through their lives."""

    def __init__(self, accounts: Accounts | None, fragments: int) -> None:
        self._accounts = accounts
        self._fragments = fragments
        self._lost: Counter[str] = Counter()
        self._living: dict[str, _Incarnation] = {}
        self._dead: dict[str, tuple[_Incarnation, int]] = {}
        self._failed: set[str] = set()

    def begin(self, event: Event) -> None:
        node = event["participant"]
        self._living[node] = _Incarnation(event["nonce"], event["first_step"])
        if node not in self._dead:
            return
        before, last_step = self._dead.pop(node)
        self._failed.discard(node)
        if before.nonce == event["nonce"] and event["resumed"] is not None:
            self._lost[node] += max(0, last_step - event["resumed"])
        else:
            self._lost[node] += self._uncovered(node, before, last_step)

    def end(self, event: Event) -> None:
        node, last_step = event["participant"], event["local_step"]
        incarnation = self._living.pop(node, None)
        if incarnation is not None:
            self._dead[node] = incarnation, last_step
        elif node not in self._dead:  # it claims no name and keeps nothing: role single
            self._lost[node] += last_step

    def fail(self, event: Event) -> None:
        """What is gone is known when it goes on: until then all may be in its checkpoint."""
        incarnation = self._living.pop(event["participant"], None)
        if incarnation is not None:
            self._dead[event["participant"]] = incarnation, event["local_step"]
            self._failed.add(event["participant"])

    def lost(self) -> dict[str, int]:
        """Those that are dead for good included."""
        lost = Counter(self._lost)
        for node in self._dead.keys() - self._failed:
            incarnation, last_step = self._dead[node]
            lost[node] += self._uncovered(node, incarnation, last_step)
        return {node: count for node, count in sorted(lost.items()) if count}

    def _uncovered(self, node_id: str, incarnation: _Incarnation, last_step: int) -> int:
        """Nothing of it goes on: what the master has of it is all that is left."""
        if self._accounts is None:
            return 0
        account = self._accounts.get(node_id, {}).get(incarnation.nonce, {})
        trained = StepRanges.of(incarnation.first_step + 1, last_step)
        gone = cells_of_all(trained, self._fragments)
        for name in ("merged", "rejected"):
            gone = gone.minus(StepRanges.parse(account.get(name, "")))
        return len(steps_of(gone))
