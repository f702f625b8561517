"""The node's side of the protocol as a state machine without I/O, threads, clocks or tensors.

Events come in as method calls, always between two local steps; actions go out, to be carried out in
order before the next step. An upload job and a poll are under way at most once each.

    event               means                                            may lead to
    `stepped`           a local step is complete                         upload, poll, installation
    `settle`            nothing new, but the node may not train yet      poll, installation
    `encoded`           the job's file is written                        -
    `spoiled`           it was all zero, or not finite                   recovery
    `landed`            the delta is in the repository, or was merged    baseline moves
    `refused`           it will never be there                           folding back
    `fetched`           a newer global is here                           installation, stop
    `nothing_new`       the poll found none                              -
    `finish`            the run is over for this node                    final upload
"""

from collections.abc import Set
from dataclasses import replace
from typing import Literal

from ray_diloco.node.actions import (
    Action,
    AdvanceBaseline,
    Fail,
    FoldBack,
    InstallGlobal,
    Job,
    Record,
    ResetOptimizer,
    ReturnToBaseline,
    StartPoll,
    StartUpload,
)
from ray_diloco.node.silence import Silence, never_silent
from ray_diloco.node.standing import Standing, copy_of
from ray_diloco.node.tally import Tally
from ray_diloco.node.told import Name
from ray_diloco.node.unsent import Unsent
from ray_diloco.protocol.clock import Micros, micros
from ray_diloco.protocol.fragments import changed_since, fragment_due, gap
from ray_diloco.protocol.global_card import GlobalCard
from ray_diloco.protocol.ranges import NO_STEPS
from ray_diloco.protocol.settings import DilocoSettings
from ray_diloco.protocol.terms import NEVER_HAD_A_GLOBAL, OUT_OF_TURN, Install
from ray_diloco.protocol.work import Work

Actions = list[Action]

WAITING_POLL = 1.0
"""Seconds between polls, at most, of a node that may not train before it has a global."""


class Coordinator:
    """One incarnation of a node.

    ``local_step`` counts on from ``first_step``, the last one that this node id ever used.
    """

    def __init__(
        self,
        settings: DilocoSettings,
        *,
        node_id: str,
        nonce: str,
        first_step: int = 0,
        forerunners: Set[str] | None = None,
        over: str | None = None,
        silent: Silence = never_silent,
    ) -> None:
        """``forerunners``: nonces under which the name was used before; when the `nodes` table
        shows yet another one, somebody has taken the name over. None: not looked at. ``over``: a
        publication whose word that the run is over does not count, because the run goes on.
        ``silent``: at which boundaries it sends nothing.
        """
        self._settings = settings
        self._name = Name(node_id=node_id, nonce=nonce, forerunners=forerunners)
        self._over = over
        self._silent = silent
        self._policy: Install = settings.install  # type: ignore[assignment]  # checked by settings
        self.local_step = first_step
        self.fragments = settings.fragments
        self._apart = gap(settings.inner_steps, settings.fragments)
        self._unsent = Unsent(settings.fragments)
        self.base_outer_step = NEVER_HAD_A_GLOBAL
        self._seen = (-1, -1)
        self.job: Job | None = None
        self._owed: int | None = None
        self._pending: GlobalCard | None = None
        self._whole = True
        self._polling = False
        self._next_poll = Micros(0)
        self._recovering = False
        self._bad_in_a_row = 0
        self._blank: set[int] = set()
        self.stop_reason: str | None = None
        self.tally = Tally()

    # -- a restart ---------------------------------------------------------------------------------

    def standing(self) -> Standing:
        """What a checkpoint keeps: everything but what is asked anew after a restart. A job that
        a global has acknowledged is over.
        """
        job = self.job
        (unsent, oldest), *others = map(self._unsent.of, range(self.fragments))
        return Standing(
            local_step=self.local_step,
            unsent=unsent,
            base_outer_step=self.base_outer_step,
            oldest_base=oldest,
            others=tuple(others),
            seen=self._seen,
            bad_in_a_row=self._bad_in_a_row,
            tally=copy_of(self.tally),
            job=None if job is not None and job.acknowledged else job,
        )

    def resume(self, standing: Standing, *, now: Micros) -> Actions:
        """Stand there again, and look for a newer global at once. A job in it counts as sent: its
        lane must find out what became of it.
        """
        self.local_step = standing.local_step
        self._unsent.restore(standing.fragments)
        self.base_outer_step = standing.base_outer_step
        self._seen = standing.seen
        self._bad_in_a_row = standing.bad_in_a_row
        self.tally = copy_of(standing.tally)
        self.job = standing.job
        self._await_merge()
        return self._poll(now)

    def resume_behind(self, standing: Standing, *, sent_up_to: int) -> None:
        """More was sent after this standing: what it holds was sent already, or is lost. Count on
        from there, with the newest global.
        """
        self.local_step = max(standing.local_step, sent_up_to)
        self._bad_in_a_row = standing.bad_in_a_row
        self.tally = copy_of(standing.tally)
        self.tally.lost = self.tally.lost.union(standing.gone_by(self.local_step))
        self._recovering = True

    # -- what the node asks ------------------------------------------------------------------------

    @property
    def unsent(self) -> Work:
        """Steps whose effect is in baseline - live, those of a job on its way included; cells."""
        return self._unsent.total

    @property
    def has_global(self) -> bool:
        return self._seen[1] >= 0

    @property
    def seen(self) -> tuple[int, int]:
        """(master epoch, outer step) of the newest global that was installed; (-1, -1) before."""
        return self._seen

    @property
    def known(self) -> tuple[int, int]:
        """The same of the newest global that was fetched, installed or not. None older is taken."""
        return self._pending.version if self._pending is not None else self._seen

    @property
    def waits_for(self) -> Literal["global", "merge", "upload", "poll"] | None:
        """What must happen before the next local step; None when the node may train.

        ``global``: one must arrive, or one that has arrived be installed by `settle`. ``merge``: so
        must one that says what became of the last delta.
        """
        if self._recovering or (self._settings.require_global and not self.has_global):
            return "global"
        if self._due() is not None:
            return "global"
        if self._owed is not None:
            return "merge"
        if self.job is not None and (not self._settings.async_delta_upload or self._held_up()):
            return "upload"
        if self._polling and not self._settings.async_global_poll:
            return "poll"
        return None

    @property
    def uploading(self) -> bool:
        """The upload lane has not ended."""
        return self.job is not None

    @property
    def polling(self) -> bool:
        """The poll lane has not ended."""
        return self._polling

    @property
    def keepable(self) -> bool:
        """This moment may go into a checkpoint: weights are sound as far as is known, and a job on
        its way has its record.
        """
        return not self._recovering and (self.job is None or self.job.encoded)

    def quiet_steps(self) -> int:
        """How many local steps end, at the least, before the next inner boundary; at least 1."""
        return self._apart - self.local_step % self._apart

    @property
    def next_poll(self) -> Micros:
        """When the next poll between boundaries is due."""
        return self._next_poll

    # -- training ----------------------------------------------------------------------------------

    def stepped(self, *, now: Micros, tokens: int, loss: float, may_send: bool = True) -> Actions:
        """One more local step is complete; it saw ``tokens`` at a mean loss of ``loss``.
        ``may_send``: the commit budget has room for a delta.
        """
        self.local_step += 1
        self._unsent.stepped(self.local_step, tokens=tokens, loss=loss, base=self.base_outer_step)
        due = fragment_due(self.local_step, apart=self._apart, fragments=self.fragments)
        actions = self._install_when_due()
        if due is not None and not self._recovering:
            actions += self._boundary(due, may_send=may_send)
        if due is not None or now >= self._next_poll:
            actions += self._poll(now)
        return actions

    def settle(self, *, now: Micros) -> Actions:
        """The node waits: install what may be installed, and look for what it waits for."""
        actions = self._install_when_due()
        if self.waits_for in ("global", "merge") and now >= self._next_poll:
            actions += self._poll(now)
        return actions

    def finish(self) -> Actions:
        """The run is over: hand over what is unsent, if anything, a fragment at a time; called with
        no job on its way, until nothing comes.
        """
        if self._recovering:
            self._drop_unsent()
        fragment = self._unsent.first(but=self._blank)
        return [] if fragment is None else self._hand_over(fragment, final=True)

    # -- the upload lane ---------------------------------------------------------------------------

    def encoded(self, number: int | None = None) -> Actions:
        """The job's file is written, under this number: the baseline may move now."""
        if self.job is not None:
            self.job = replace(self.job, encoded=True, number=number)
            if self._owed is not None:
                self._await_merge()
        return []

    def spoiled(self, verdict: Literal["zero", "not finite"]) -> Actions:
        """The job was not sent.

        All zero: its steps stay unsent. Not finite: start over from the newest global.
        """
        job, self.job, self._owed = self.job, None, None
        replaced = job if job is not None and job.after_install else None
        if verdict == "zero":
            if job is not None and job.final:
                self._blank.add(job.place)
            if replaced is not None:
                self._unsent.take_back(replaced)
            return [Record("delta_empty", {"local_step": self.local_step})]
        if replaced is not None:
            self.tally.drop(replaced.cells)
        self._bad_in_a_row += 1
        self._recovering = True
        self._pending = self._pending if self._whole else None
        self._next_poll = Micros(0)
        record = Record("delta_not_finite", {"local_step": self.local_step})
        if self._bad_in_a_row >= self._settings.max_bad_deltas:
            count = self._bad_in_a_row
            message = f"{count} deltas in a row were not finite (diloco.max_bad_deltas={count})"
            return [record, Fail(message)]
        return [record]

    def landed(self) -> Actions:
        """The delta is in the repository."""
        job, self.job = self.job, None
        return [] if job is None or job.acknowledged else self._arrived(job)

    def _arrived(self, job: Job) -> Actions:
        self._bad_in_a_row = 0
        record = self.tally.arrived(job)
        if job.after_install:
            return [record]
        self._unsent.arrived(job)
        return [AdvanceBaseline(job), record]

    def refused(self, reason: str) -> Actions:
        """The delta is not there and never will be."""
        job, self.job = self.job, None
        if job is None or job.acknowledged:
            return []
        self._owed = None
        self.tally.deltas_refused += 1
        record = Record("delta_refused", {"local_step": job.local_step, "reason": reason})
        if not job.after_install:
            return [record]
        self._unsent.take_back(job)
        return [FoldBack(job), record]

    # -- the poll lane -----------------------------------------------------------------------------

    def fetched(self, card: GlobalCard, *, whole: bool = True) -> Actions:
        """A newer global lies ready; not ``whole``: of it what changed since the one installed,
        which repairs no weights that went bad.
        """
        self._polling = False
        actions = self._heed(card)
        if self._recovering and not whole:
            self._next_poll = Micros(0)
            return actions
        self._whole = whole
        if card.version > self.known or (self._recovering and card.version == self.known):
            self._pending = card
        return actions

    def nothing_new(self, card: GlobalCard | None = None) -> Actions:
        """The poll found no newer weights; perhaps newer metadata of the same ones."""
        self._polling = False
        if card is not None:
            return self._heed(card)
        alone = self._recovering and not self.has_global and not self._settings.require_global
        return self._return_to_baseline() if alone else []

    # -- inside ------------------------------------------------------------------------------------

    def _boundary(self, fragment: int, *, may_send: bool) -> Actions:
        reason = None if may_send else OUT_OF_TURN
        if self.uploading:
            reason = "upload under way"
        if self._silent(self.local_step):
            reason = "silent by lot"
        if reason is None:
            return self._hand_over(fragment, final=False)
        self.tally.skipped_boundaries += 1
        return [Record("boundary_skipped", {"local_step": self.local_step, "reason": reason})]

    def _hand_over(self, fragment: int, *, final: bool) -> Actions:
        job = self._unsent.job(fragment, self.local_step, base=self.base_outer_step, final=final)
        if job is None:
            return []
        self.job = job
        if not final:
            self._await_merge()
        resets = self._settings.reset_inner_optimizer and not final
        return [StartUpload(self.job, resets), *([ResetOptimizer()] if resets else [])]

    def _poll(self, now: Micros) -> Actions:
        if self._polling:
            return []
        self._polling = True
        interval, waits_for = micros(self._settings.poll_interval), self.waits_for
        if waits_for == "global":
            interval = min(interval, micros(WAITING_POLL))
        self._next_poll = Micros(now + interval)
        every = interval if waits_for == "merge" else None
        return [StartPoll(anew=self._recovering, every=every)]

    def _await_merge(self) -> None:
        """Train on when it is known what became of the job."""
        if self._settings.nodes_wait and self.job is not None:
            self._owed = self.job.sent_as
            self._next_poll = Micros(0)

    def _heed(self, card: GlobalCard) -> Actions:
        outlived = self._over is not None and card.publication_id == self._over
        if not outlived:
            self.stop_reason = self.stop_reason or card.stop
        if self._owed is not None and self._says_what_became_of(self._owed, card):
            self._owed = None
        row = self._name.row_in(card)
        if row is not None:
            return [*self.tally.hear(row, self.job)]
        if self._name.taken_over_in(card):
            return [Fail("another process has taken over this node id", fenced=True)]
        return []

    def _says_what_became_of(self, number: int, card: GlobalCard) -> bool:
        """A plain peer's global says nothing of deltas: any newer one will do."""
        if card.publication_id is None:
            return card.version > self.known
        return self._name.is_in(card, number)

    def _held_up(self) -> bool:
        """A `boundary` installation is due, but the delta that goes before it is not on disk
        yet.
        """
        return (
            self._policy == "boundary"
            and self._pending is not None
            and self.job is not None
            and not self.job.encoded
            and self._all_handed()
        )

    def _install_when_due(self) -> Actions:
        card = self._due()
        return self._install(card) if card is not None else []

    def _due(self) -> GlobalCard | None:
        """The global that may be installed now."""
        if self._pending is None or (self.job is not None and not self.job.encoded):
            return None
        any_time = self._policy != "boundary" or self._recovering
        return self._pending if any_time or self._all_handed() else None

    def _all_handed(self) -> bool:
        """Every unsent step is in the job, so that replacing the live model drops none."""
        handed = self.job.cells if self.job is not None else NO_STEPS
        return not self._unsent.cells.minus(handed)

    def _install(self, card: GlobalCard) -> Actions:
        self._pending = None
        actions = self._acknowledge(card) + self._heed(card)
        policy: Install = "replace" if self._recovering else self._policy
        if policy != "rebase":
            self._drop_unsent()
        reset = self._settings.reset_inner_optimizer or self._recovering
        fragments = self._new_fragments(card)
        self._recovering = False
        self._seen = card.version
        self.base_outer_step = card.outer_step
        self._unsent.installed(card.outer_step)
        self.tally.installs += 1
        return [
            *actions,
            InstallGlobal(card, policy, fragments),
            *([ResetOptimizer()] if reset else []),
        ]

    def _new_fragments(self, card: GlobalCard) -> tuple[int, ...] | None:
        """What of a global is installed: the fragments that it has new; None: all of it."""
        if self.fragments == 1 or self._recovering or not self.has_global:
            return None
        return changed_since(self._seen[1], card.fragment_steps)

    def _acknowledge(self, card: GlobalCard) -> Actions:
        """A global that contains the job on its way is the receipt for it. The job stays until its
        lane has ended, so that no other can be started beside it.
        """
        job = self.job
        if job is None or job.acknowledged or not self._name.is_in(card, job.sent_as):
            return []
        self.job = replace(job, acknowledged=True)
        return self._arrived(job)

    def _drop_unsent(self) -> None:
        on_its_way = None
        if self.job is not None and not self.job.after_install:
            on_its_way = self.job
            self.job = replace(self.job, after_install=True)
        self.tally.drop(self._unsent.drop(but=on_its_way))

    def _return_to_baseline(self) -> Actions:
        """Weights went bad before there was any global: nothing sounder is known than the
        baseline.
        """
        self._drop_unsent()
        self._recovering = False
        return [ReturnToBaseline(), ResetOptimizer()]
