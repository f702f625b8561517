"""Where the coordinator stands between two local steps, as plain data that a checkpoint keeps."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ray_diloco.node.actions import Job
from ray_diloco.node.tally import Tally
from ray_diloco.protocol.fragments import cells, cells_of_all
from ray_diloco.protocol.ranges import NO_STEPS, StepRanges
from ray_diloco.protocol.work import Work

_COUNTS = ("deltas_landed", "deltas_refused", "skipped_boundaries", "installs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """See `Coordinator` for the fields. A job in it may have been sent, whatever it says."""

    local_step: int
    unsent: Work
    base_outer_step: int
    oldest_base: int
    seen: tuple[int, int]
    bad_in_a_row: int
    tally: Tally
    job: Job | None = None
    others: tuple[tuple[Work, int], ...] = ()
    """``unsent`` and ``oldest_base`` of the second fragment and all that follow."""

    @property
    def fragments(self) -> tuple[tuple[Work, int], ...]:
        """What is unsent of each fragment, and its oldest base."""
        return ((self.unsent, self.oldest_base), *self.others)

    @property
    def unsent_cells(self) -> StepRanges:
        """All that is unsent, as the books have it."""
        found = NO_STEPS
        for fragment, (work, _) in enumerate(self.fragments):
            found = found.union(cells(work.steps, fragment))
        return found

    def gone_by(self, local_step: int) -> StepRanges:
        """What it holds and what came after it up to this step, as the books have it: all that is
        not known when more was sent since.
        """
        passed = StepRanges.of(self.local_step + 1, local_step)
        gone = self.unsent_cells.union(cells_of_all(passed, len(self.fragments)))
        return gone if self.job is None else gone.union(self.job.cells)

    def with_number(self, number: int) -> "Standing":
        """With the number that the job's file has got."""
        assert self.job is not None
        return replace(self, job=replace(self.job, number=number))

    def to_plain(self) -> dict[str, Any]:
        """JSON values only."""
        return {
            "local_step": self.local_step,
            "unsent": _plain_work(self.unsent),
            "base_outer_step": self.base_outer_step,
            "oldest_base": self.oldest_base,
            "seen": list(self.seen),
            "bad_in_a_row": self.bad_in_a_row,
            "tally": _plain_tally(self.tally),
            "job": None if self.job is None else _plain_job(self.job),
            "others": [[_plain_work(work), oldest] for work, oldest in self.others],
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Standing":
        """What `to_plain` gave. KeyError, TypeError or ValueError when it is something else."""
        epoch, outer_step = plain["seen"]
        return cls(
            local_step=int(plain["local_step"]),
            unsent=_work(plain["unsent"]),
            base_outer_step=int(plain["base_outer_step"]),
            oldest_base=int(plain["oldest_base"]),
            seen=(int(epoch), int(outer_step)),
            bad_in_a_row=int(plain["bad_in_a_row"]),
            tally=_tally(plain["tally"]),
            job=None if plain["job"] is None else _job(plain["job"]),
            others=tuple((_work(work), int(oldest)) for work, oldest in plain.get("others", ())),
        )


def copy_of(tally: Tally) -> Tally:
    """One that does not change with the original."""
    return replace(tally, rejected=dict(tally.rejected), awaiting=dict(tally.awaiting))


def _plain_work(work: Work) -> dict[str, Any]:
    return {"steps": str(work.steps), "tokens": work.tokens, "loss_sum": work.loss_sum}


def _work(plain: Mapping[str, Any]) -> Work:
    return Work(
        steps=StepRanges.parse(plain["steps"]),
        tokens=int(plain["tokens"]),
        loss_sum=float(plain["loss_sum"]),
    )


def _plain_job(job: Job) -> dict[str, Any]:
    return {
        "local_step": job.local_step,
        "work": _plain_work(job.work),
        "base_outer_step": job.base_outer_step,
        "oldest_base_outer_step": job.oldest_base_outer_step,
        "final": job.final,
        "number": job.number,
        "after_install": job.after_install,
        "fragment": job.fragment,
    }


def _job(plain: Mapping[str, Any]) -> Job:
    return Job(
        local_step=int(plain["local_step"]),
        work=_work(plain["work"]),
        base_outer_step=int(plain["base_outer_step"]),
        oldest_base_outer_step=int(plain["oldest_base_outer_step"]),
        final=plain["final"] is True,
        number=None if plain["number"] is None else int(plain["number"]),
        encoded=True,
        after_install=plain["after_install"] is True,
        fragment=None if plain.get("fragment") is None else int(plain["fragment"]),
    )


def _plain_tally(tally: Tally) -> dict[str, Any]:
    return {name: getattr(tally, name) for name in _COUNTS} | {
        "dropped": str(tally.dropped),
        "lost": str(tally.lost),
        "rejected": [[n, str(steps), why] for n, (steps, why) in tally.rejected.items()],
        "awaiting": [[number, str(steps)] for number, steps in tally.awaiting.items()],
    }


def _tally(plain: Mapping[str, Any]) -> Tally:
    return Tally(
        **{name: int(plain[name]) for name in _COUNTS},
        dropped=StepRanges.parse(plain["dropped"]),
        lost=StepRanges.parse(plain["lost"]),
        rejected={int(n): (StepRanges.parse(s), str(why)) for n, s, why in plain["rejected"]},
        awaiting={int(number): StepRanges.parse(steps) for number, steps in plain["awaiting"]},
    )
