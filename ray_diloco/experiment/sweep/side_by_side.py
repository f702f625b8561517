"""All trials of a list, as many at once as fit: the loop of a sweep."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from ray_diloco.experiment.sweep.board import Board, Standing
from ray_diloco.experiment.sweep.rows import Row, Status
from ray_diloco.experiment.sweep.session import Progressed, Session
from ray_diloco.experiment.sweep.settings import LauncherSettings
from ray_diloco.experiment.sweep.trials import Proposal, Refused, Trial

STEP_SECONDS = 0.25
FINAL = (Status.done, Status.pruned, Status.invalid, Status.interrupted)
"""What is not tried again at once."""
WELL = (Status.done, Status.pruned, Status.interrupted)
"""What is no failure of a trial."""


class Follower(Protocol):
    """Whoever proposes trials by how others came out."""

    def ended(self, row: Row) -> None:
        """A trial has its last row."""
        ...

    def told(self, progressed: Progressed) -> str | None:
        """Why a running trial is to end early; None: it goes on."""
        ...


def run_all(
    session: Session,
    proposals: Iterator[Proposal],
    settled: Mapping[str, Row],
    *,
    standing: Standing,
    board: Board,
    settings: LauncherSettings,
    asked: Callable[[], bool],
    follower: Follower | None = None,
) -> list[str]:
    """Run every proposal whose key is not ``settled``, and keep rows and board up to date. Gives
    the key of each proposal in their order, up to where ``asked`` or `fail_fast` ended it. With a
    ``follower``, a trial is proposed no sooner than there is room for one like the last.
    """
    loop = _Loop(
        session,
        proposals,
        settled,
        standing=standing,
        board=board,
        settings=settings,
        follower=follower,
    )
    loop.fill()
    while session.running and not loop.given_up and not asked():
        loop.step()
        loop.fill()
    loop.interrupt()
    return loop.keys


class _Loop:
    """What waits, what is tried again, and what is told."""

    def __init__(
        self,
        session: Session,
        proposals: Iterator[Proposal],
        settled: Mapping[str, Row],
        *,
        standing: Standing,
        board: Board,
        settings: LauncherSettings,
        follower: Follower | None,
    ) -> None:
        self.keys: list[str] = []
        self.given_up = False
        self._session = session
        self._proposals = proposals
        self._settled = settled
        self._standing = standing
        self._board = board
        self._settings = settings
        self._follower = follower
        self._last: Trial | None = None
        self._waiting: deque[Trial] = deque()
        self._tries: dict[str, int] = {}
        self._trials: dict[str, Trial] = {}

    def fill(self) -> None:
        """Start what there is room for."""
        while not self.given_up and self._has_room() and (trial := self._next()) is not None:
            self._last = trial
            if not self._session.admits(trial):
                self._waiting.appendleft(trial)
                break
            self._tries[trial.key] = self._tries.get(trial.key, 0) + 1
            self._trials[trial.key] = trial
            row = self._session.start(trial)
            if row is not None:
                self._note(row)
        self._show()

    def step(self) -> None:
        """Wait a little, and keep what ended."""
        rows, told = self._session.step(STEP_SECONDS)
        for row in rows:
            self._note(row)
        self._pass_on(told)
        self._show()

    def interrupt(self) -> None:
        """End what still runs."""
        for row in self._session.interrupt():
            self._note(row)

    def _has_room(self) -> bool:
        """For whatever comes next. False while a follower had better wait for more to end."""
        if self._follower is None or self._last is None or self._waiting:
            return True
        return self._session.admits(self._last)

    def _pass_on(self, told: Sequence[Progressed]) -> None:
        if self._follower is None:
            return
        for each in told:
            reason = self._follower.told(each)
            if reason is not None:
                self._session.stop(each.trial.number, reason)

    def _next(self) -> Trial | None:
        if self._waiting:
            return self._waiting.popleft()
        for proposal in self._proposals:
            if self._is_new(proposal):
                if isinstance(proposal, Trial):
                    return proposal
                self._refuse(proposal)
                if self.given_up:
                    return None
        return None

    def _is_new(self, proposal: Proposal) -> bool:
        """False for one that is settled, or that was proposed before."""
        known = proposal.key in self.keys
        self.keys.append(proposal.key)
        if known and self._standing.total is not None:
            self._standing.total -= 1
            self._board.note(f"trial {proposal.number} is the same as one before it")
        elif proposal.key in self._settled:
            self._standing.keep(self._settled[proposal.key])
            return False
        return not known

    def _refuse(self, refused: Refused) -> None:
        self._note(self._session.refuse(refused))

    def _note(self, row: Row) -> None:
        self._standing.add(row)
        self._standing.running = len(self._session.running)
        self._board.ended(row, self._standing)
        trial = self._trials.get(row.key)
        again = row.status not in FINAL and self._tries.get(row.key, 0) <= self._settings.retries
        if again and trial is not None:
            self._waiting.append(trial)
            return
        if self._follower is not None:
            self._follower.ended(row)
        if self._settings.fail_fast and row.status not in WELL:
            self.given_up = True

    def _show(self) -> None:
        self._standing.running = len(self._session.running)
        self._board.show(self._standing)
