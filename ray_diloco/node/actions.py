"""What the coordinator tells the node to do, in order, on the training thread."""

from dataclasses import dataclass
from typing import Any

from ray_diloco.protocol.clock import Micros
from ray_diloco.protocol.fragments import cells
from ray_diloco.protocol.global_card import GlobalCard
from ray_diloco.protocol.ranges import StepRanges
from ray_diloco.protocol.terms import Install
from ray_diloco.protocol.work import NO_WORK, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """An upload job: a pseudo-gradient on its way.

    ``encoded``: its file is written, so the baseline that it was measured from may move.
    ``after_install``: a global was installed over it with `boundary` or `replace`: landing moves no
    baseline, and being refused folds it back into the live model.
    ``number``: the local step that its file is called by, once it is encoded; another one than
    ``local_step`` in a run that a peer leads.
    ``acknowledged``: a global that contains it was installed before the lane knew: what the lane
    says of it in the end changes nothing more.
    ``fragment``: which one it carries; None: the model is not cut into fragments.
    """

    local_step: int
    work: Work = NO_WORK
    base_outer_step: int
    oldest_base_outer_step: int
    final: bool = False
    number: int | None = None
    encoded: bool = False
    after_install: bool = False
    acknowledged: bool = False
    fragment: int | None = None

    @property
    def sent_as(self) -> int:
        """The number under which the repository and the master know it."""
        return self.local_step if self.number is None else self.number

    @property
    def place(self) -> int:
        """The fragment that it carries; 0 where there is but one."""
        return self.fragment or 0

    @property
    def cells(self) -> StepRanges:
        """What it covers, as the books have it."""
        return cells(self.work.steps, self.place)


@dataclass(frozen=True, slots=True)
class StartUpload:
    """Take the snapshot now, then encode and send it in the upload lane. Answered by the lane.

    ``resets``: the inner optimizer starts anew right after.
    """

    job: Job
    resets: bool = False


@dataclass(frozen=True, slots=True)
class StartPoll:
    """Look for a newer global in the poll lane and fetch it; ``anew``: even the one seen last;
    ``every``: again after so long, until there is something new; None: once.
    """

    anew: bool = False
    every: Micros | None = None


@dataclass(frozen=True, slots=True)
class InstallGlobal:
    """Install the global that was fetched, by this policy. ``fragments``: only these; None: all."""

    card: GlobalCard
    policy: Install
    fragments: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class AdvanceBaseline:
    """The job landed: what it carried is no longer unsent."""

    job: Job


@dataclass(frozen=True, slots=True)
class FoldBack:
    """The job was refused after an installation: put what it carried back into the live model."""

    job: Job


@dataclass(frozen=True, slots=True)
class ReturnToBaseline:
    """Give up what the live model has learned since the baseline, the last sound state."""


@dataclass(frozen=True, slots=True)
class ResetOptimizer:
    """Start the inner optimizer anew."""


@dataclass(frozen=True, slots=True)
class Record:
    """Something happened that the run's events should tell."""

    event: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Fail:
    """The node cannot go on. ``fenced``: because another process has its name."""

    message: str
    fenced: bool = False


Action = (
    StartUpload
    | StartPoll
    | InstallGlobal
    | AdvanceBaseline
    | FoldBack
    | ReturnToBaseline
    | ResetOptimizer
    | Record
    | Fail
)
