"""What became of a node's local steps and boundaries so far."""

from dataclasses import dataclass, field

from ray_diloco.node.actions import Job, Record
from ray_diloco.protocol.global_card import NodeRow
from ray_diloco.protocol.ranges import NO_STEPS, StepRanges


@dataclass(slots=True)
class Tally:
    """Counts of one incarnation; they survive its restarts."""

    dropped: StepRanges = NO_STEPS
    lost: StepRanges = NO_STEPS
    """Steps of a state that is gone: they are in a delta that was sent, or nowhere. The master's
    account says which.
    """
    deltas_landed: int = 0
    deltas_refused: int = 0
    skipped_boundaries: int = 0
    installs: int = 0
    rejected: dict[int, tuple[StepRanges, str]] = field(
        default_factory=dict[int, tuple[StepRanges, str]]
    )
    """Number of a delta that the master refused -> what it covered, and why."""
    awaiting: dict[int, StepRanges] = field(default_factory=dict[int, StepRanges])
    """Number of a delta that landed, but is in no global that was seen -> what it covers."""

    def drop(self, steps: StepRanges) -> None:
        """The effect of these steps was given up."""
        self.dropped = self.dropped.union(steps)

    def arrived(self, job: Job) -> Record:
        """The job's delta is in the repository."""
        self.deltas_landed += 1
        self.awaiting[job.sent_as] = job.cells
        covers = str(job.work.steps)
        return Record("delta_landed", {"local_step": job.local_step, "covers": covers})

    def hear(self, row: NodeRow, job: Job | None) -> list[Record]:
        """A global says what it contains of this incarnation; ``job`` is on its way."""
        new = {number: why for number, why in row.rejected if number not in self.rejected}
        for number, why in new.items():
            self.rejected[number] = (self._covered(number, job), why)
        self.awaiting = {
            number: steps for number, steps in self.awaiting.items() if number > row.last_local_step
        }
        return [
            Record(
                "delta_rejected",
                {"local_step": number, "covers": str(self.rejected[number][0]), "reason": why},
            )
            for number, why in new.items()
        ]

    def _covered(self, number: int, job: Job | None) -> StepRanges:
        """What a delta covers that landed, perhaps before its lane could say so."""
        if job is not None and job.sent_as == number:
            return job.cells
        return self.awaiting.pop(number, NO_STEPS)
