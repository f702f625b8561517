"""A search: proposes the next point when there is room for one, and learns from each that ends."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import optuna
from optuna.trial import TrialState

from ray_diloco.errors import ConfigError
from ray_diloco.experiment.sweep.rows import Row, Status
from ray_diloco.experiment.sweep.search_marks import Marks
from ray_diloco.experiment.sweep.search_settings import SearchSettings
from ray_diloco.experiment.sweep.search_space import Space
from ray_diloco.experiment.sweep.search_study import NUMBER, STATUS, Opened
from ray_diloco.experiment.sweep.session import Progressed
from ray_diloco.experiment.sweep.trials import Proposal

WORST = math.inf
"""What a point counts that failed, was refused or has no finite objective: it has its place among
the others, as the last.
"""

Propose = Callable[[Sequence[str], int], list[Proposal]]
"""The trials of one point: one for each seed. Given its words and its number."""


@dataclass(slots=True, kw_only=True)
class _Point:
    asked: optuna.Trial
    keys: list[str]
    marks: Marks | None = None


@dataclass(slots=True, kw_only=True)
class Search:
    """Follows the loop of a sweep. ``rows``: what is known of trials, by key. ``mark_seconds``:
    between two marks at which running trials are compared; None: none is ended early.
    """

    open: Callable[[], Opened]
    """Called when the first point is asked for."""
    space: Space
    settings: SearchSettings
    propose: Propose
    mark_seconds: float | None = None
    rows: dict[str, Row] = field(default_factory=dict[str, Row])
    left: int = 0
    """Points that have not been asked for."""
    _study: optuna.Study | None = None
    _running: list[_Point] = field(default_factory=list[_Point])

    def proposals(self) -> Iterator[Proposal]:
        """Each point is asked for when its first trial is: it knows all that has ended by then."""
        opened = self.open()
        self._study, self.left = opened.study, opened.left
        number = opened.next_number
        while self.left > 0:
            self.left -= 1
            asked = self._study.ask(fixed_distributions=self.space.searched)
            if NUMBER not in asked.user_attrs:
                asked.set_user_attr(NUMBER, number)
                number += 1
            yield from self._begin(asked)

    def ended(self, row: Row) -> None:
        """A trial has its last row."""
        self.rows[row.key] = row
        self._tell_what_is_known()

    def told(self, progressed: Progressed) -> str | None:
        """Why a running trial is to end early; None: it goes on."""
        point = next((each for each in self._running if progressed.trial.key in each.keys), None)
        if point is None or point.marks is None:
            return None
        evaluated = progressed.evaluated
        for mark, loss in point.marks.told(evaluated.seconds, evaluated.loss):
            point.asked.report(loss, mark)
            if point.asked.should_prune():
                seconds = mark * point.marks.every
                return f"a loss of {loss:.4g} after {seconds:.4g} seconds is worse than others had"
        return None

    def _begin(self, asked: optuna.Trial) -> list[Proposal]:
        found = self.propose(self.space.words(asked.params), asked.user_attrs[NUMBER])
        marks = Marks(every=self.mark_seconds) if self.mark_seconds is not None else None
        keys = [each.key for each in found]
        self._running.append(_Point(asked=asked, keys=keys, marks=marks))
        self._tell_what_is_known()
        return found

    def _tell_what_is_known(self) -> None:
        """Of each point whose trials have all ended; also of one that was proposed before."""
        for point in list(self._running):
            if all(key in self.rows for key in point.keys):
                self._running.remove(point)
                self._tell(point, [self.rows[key] for key in point.keys])

    def _tell(self, point: _Point, rows: Sequence[Row]) -> None:
        assert self._study is not None
        for row in rows:
            self._report_rest(point, row)
        statuses = {row.status for row in rows}
        point.asked.set_user_attr(STATUS, worst_of(statuses).value)
        if Status.interrupted in statuses:
            self._study.tell(point.asked, state=TrialState.FAIL)
        elif Status.pruned in statuses:
            self._study.tell(point.asked, state=TrialState.PRUNED)
        else:
            self._study.tell(point.asked, values_of(rows, self.settings.objectives))

    @staticmethod
    def _report_rest(point: _Point, row: Row) -> None:
        """What a trial had no time to tell before it ended: others are compared with it."""
        if point.marks is None:
            return
        for each in row.numbers.get("evaluations", []):
            loss = WORST if each["loss"] is None else each["loss"]
            for mark, value in point.marks.told(each["at_seconds"], loss):
                point.asked.report(value, mark)


def values_of(rows: Sequence[Row], objectives: Sequence[str]) -> list[float]:
    """Of one point, the means over its seeds; `WORST` throughout when one of them has none.
    ConfigError for an objective that results do not have.
    """
    if any(row.status is not Status.done for row in rows):
        return [WORST] * len(objectives)
    values = [[number_of(row, name) for row in rows] for name in objectives]
    if any(value is None for each in values for value in each):
        return [WORST] * len(objectives)
    return [fmean(value for value in each if value is not None) for each in values]


def number_of(row: Row, objective: str) -> float | None:
    """None when it is not finite. ConfigError when there is no such number."""
    if objective not in row.numbers:
        raise ConfigError("search.objectives", objective, "expected a number of result.json")
    value = row.numbers[objective]
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        raise ConfigError("search.objectives", objective, f"expected a number, it is {value!r}")
    return float(value) if value is not None and math.isfinite(value) else None


def worst_of(statuses: set[Status]) -> Status:
    """What is to be said of a point by its trials: what has to be run again comes first."""
    order = [Status.interrupted, *(each for each in Status if not each.settled)]
    return next(each for each in [*order, Status.pruned, Status.done] if each in statuses)
