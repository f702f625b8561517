"""What a node has learned and not sent, fragment by fragment; the plain protocol has one."""

from ray_diloco.errors import ConfigError
from ray_diloco.node.actions import Job
from ray_diloco.protocol.fragments import cells, tokens_for
from ray_diloco.protocol.ranges import NO_STEPS, StepRanges
from ray_diloco.protocol.terms import NEVER_HAD_A_GLOBAL
from ray_diloco.protocol.work import NO_WORK, Work


class Unsent:
    """Steps whose effect is in baseline - live, those of a job on its way included. Of each
    fragment also the oldest base that such a step was taken from.
    """

    def __init__(self, fragments: int) -> None:
        self._works = [NO_WORK] * fragments
        self._oldest = [NEVER_HAD_A_GLOBAL] * fragments

    def of(self, fragment: int) -> tuple[Work, int]:
        """What is unsent of a fragment, in local steps, and its oldest base."""
        return self._works[fragment], self._oldest[fragment]

    def restore(self, found: tuple[tuple[Work, int], ...]) -> None:
        """Take back what `of` gave for every fragment. ConfigError when the model was cut into
        another number of them.
        """
        if len(found) != len(self._works):
            raise ConfigError(
                "diloco.fragments",
                len(self._works),
                f"expected {len(found)}, as in the checkpoint that it goes on from",
            )
        self._works = [work for work, _ in found]
        self._oldest = [oldest for _, oldest in found]

    @property
    def total(self) -> Work:
        """All together, in cells."""
        total = NO_WORK
        for fragment, work in enumerate(self._works):
            total = total.plus(_in_cells(work, fragment))
        return total

    @property
    def cells(self) -> StepRanges:
        return self.total.steps

    def first(self, *, but: set[int]) -> int | None:
        """The first fragment with something to send; None when nothing is left."""
        found = (f for f, work in enumerate(self._works) if work and f not in but)
        return next(found, None)

    def stepped(self, local_step: int, *, tokens: int, loss: float, base: int) -> None:
        """One more step is complete; each fragment counts its share of the tokens."""
        step, fragments = StepRanges.of(local_step, local_step), len(self._works)
        for fragment, work in enumerate(self._works):
            if not work:
                self._oldest[fragment] = base
            share = tokens_for(fragment, tokens, fragments=fragments)
            self._works[fragment] = work.plus(Work(steps=step, tokens=share, loss_sum=loss))

    def job(self, fragment: int, local_step: int, *, base: int, final: bool) -> Job | None:
        """All that is unsent of a fragment, to be handed over; None when there is nothing."""
        work, oldest = self.of(fragment)
        if not work:
            return None
        return Job(
            local_step=local_step,
            work=work,
            base_outer_step=base,
            oldest_base_outer_step=oldest,
            final=final,
            fragment=fragment if len(self._works) > 1 else None,
        )

    def arrived(self, job: Job) -> None:
        """What the job carried is no longer unsent."""
        self._works[job.place] = self._works[job.place].minus(job.work)
        self._oldest[job.place] = job.base_outer_step

    def take_back(self, job: Job) -> None:
        """What the job carried is unsent again."""
        self._works[job.place] = self._works[job.place].plus(job.work)
        self._oldest[job.place] = min(self._oldest[job.place], job.oldest_base_outer_step)

    def installed(self, base: int) -> None:
        """A global was installed: where nothing is unsent, the next step is taken from it."""
        for fragment, work in enumerate(self._works):
            if not work:
                self._oldest[fragment] = base

    def drop(self, *, but: Job | None) -> StepRanges:
        """Nothing is unsent any more; gives the cells that are given up, those of a job that goes
        on by itself left out.
        """
        gone = self.cells.minus(but.cells if but is not None else NO_STEPS)
        self._works = [NO_WORK] * len(self._works)
        return gone


def _in_cells(work: Work, fragment: int) -> Work:
    return Work(steps=cells(work.steps, fragment), tokens=work.tokens, loss_sum=work.loss_sum)
