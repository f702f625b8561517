from dataclasses import replace
from typing import Any

import pytest

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
from ray_diloco.node.coordinator import WAITING_POLL, Coordinator
from ray_diloco.protocol.clock import Micros, micros
from ray_diloco.protocol.global_card import GlobalCard, NodeRow
from ray_diloco.protocol.ranges import NO_STEPS, StepRanges
from ray_diloco.protocol.settings import DilocoSettings

START = Micros(0)


def node(*, first_step: int = 0, **settings: Any) -> Coordinator:
    """A node with an inner boundary at every second step that has no global yet."""
    chosen = {"inner_steps": 2, "reset_inner_optimizer": False, **settings}
    return Coordinator(DilocoSettings(**chosen), node_id="n1", nonce="abc", first_step=first_step)


def ready(**settings: Any) -> Coordinator:
    """The same with the bootstrap global installed."""
    coordinator = node(**settings)
    coordinator.settle(now=START)
    coordinator.fetched(version(0))
    coordinator.settle(now=START)
    assert coordinator.waits_for is None
    return coordinator


def version(
    outer_step: int,
    *,
    epoch: int = 0,
    merged_up_to: int | None = None,
    nonce: str = "abc",
    rejected: tuple[tuple[int, str], ...] = (),
    stop: str | None = None,
) -> GlobalCard:
    """A global, with a row of this node if it says how far it was merged."""
    row = NodeRow(
        nonce=nonce,
        last_local_step=merged_up_to or 0,
        seen_outer_step=outer_step,
        rejected=rejected,
    )
    nodes = {} if merged_up_to is None else {"n1": row}
    return GlobalCard(outer_step=outer_step, master_epoch=epoch, nodes=nodes, stop=stop)


def train(coordinator: Coordinator, steps: int = 1, *, now: Micros = START) -> list[Action]:
    actions: list[Action] = []
    for _ in range(steps):
        actions += coordinator.stepped(now=now, tokens=10, loss=2.0)
    return actions


def decisions(actions: list[Action]) -> list[type[Action]]:
    """What is to be done, without what is only recorded."""
    return [type(action) for action in actions if not isinstance(action, Record)]


def events(actions: list[Action]) -> list[str]:
    return [action.event for action in actions if isinstance(action, Record)]


def job_of(actions: list[Action]) -> Job:
    (upload,) = [action for action in actions if isinstance(action, StartUpload)]
    return upload.job


def steps(first: int, last: int) -> StepRanges:
    return StepRanges.of(first, last)


# -- before the first global -----------------------------------------------------------------------


def test_a_node_does_not_train_before_it_has_a_global():
    coordinator = node()
    assert coordinator.waits_for == "global"
    assert coordinator.settle(now=START) == [StartPoll()]
    assert coordinator.settle(now=START) == []
    coordinator.fetched(version(4))
    assert coordinator.waits_for == "global"
    assert decisions(coordinator.settle(now=START)) == [InstallGlobal]
    assert coordinator.waits_for is None
    assert (coordinator.has_global, coordinator.base_outer_step) == (True, 4)


def test_a_waiting_node_looks_again_soon_whatever_its_poll_interval():
    coordinator = node(poll_interval=60.0)
    coordinator.settle(now=START)
    coordinator.nothing_new()
    assert coordinator.next_poll == micros(WAITING_POLL)
    assert coordinator.settle(now=Micros(coordinator.next_poll - 1)) == []
    assert coordinator.settle(now=coordinator.next_poll) == [StartPoll()]


def test_without_require_global_a_node_trains_at_once_with_base_minus_one():
    coordinator = node(require_global=False)
    assert coordinator.waits_for is None
    job = job_of(train(coordinator, 2))
    assert (job.base_outer_step, job.oldest_base_outer_step) == (-1, -1)


@pytest.mark.parametrize("install", ["rebase", "boundary"])
def test_a_first_global_that_comes_late_drops_nothing(install: str):
    coordinator = node(require_global=False, install=install)
    train(coordinator)
    coordinator.fetched(version(0))
    actions = train(coordinator)
    coordinator.encoded()
    actions += coordinator.settle(now=START)
    assert InstallGlobal in decisions(actions)
    assert coordinator.tally.dropped == NO_STEPS


# -- boundaries ------------------------------------------------------------------------------------


def test_nothing_is_handed_over_between_boundaries():
    coordinator = ready()
    assert train(coordinator) == []
    assert coordinator.quiet_steps() == 1


def test_a_boundary_hands_over_and_then_asks_for_a_newer_global():
    coordinator = ready()
    actions = train(coordinator, 2)
    assert decisions(actions) == [StartUpload, StartPoll]
    job = job_of(actions)
    assert (job.local_step, job.work.steps, job.work.tokens) == (2, steps(1, 2), 20)
    assert (job.work.mean_loss, job.base_outer_step, job.final) == (2.0, 0, False)
    assert coordinator.uploading
    assert coordinator.quiet_steps() == 2


def test_steps_and_boundaries_count_on_from_the_last_step_of_the_name():
    coordinator = node(first_step=5)
    coordinator.fetched(version(0))
    coordinator.settle(now=START)
    job = job_of(train(coordinator))
    assert (job.local_step, job.work.steps) == (6, steps(6, 6))


def test_a_boundary_that_finds_the_lane_busy_is_skipped_and_counted():
    coordinator = ready()
    train(coordinator, 2)
    actions = train(coordinator, 2)
    assert StartUpload not in decisions(actions)
    assert events(actions) == ["boundary_skipped"]
    assert coordinator.tally.skipped_boundaries == 1


def test_the_delta_after_a_skipped_boundary_covers_all_that_was_not_sent():
    coordinator = ready()
    train(coordinator, 4)
    coordinator.landed()
    assert job_of(train(coordinator, 2)).work.steps == steps(3, 6)


def test_the_delta_after_a_refused_one_covers_its_steps_too():
    coordinator = ready()
    train(coordinator, 2)
    assert decisions(coordinator.refused("429")) == []
    job = job_of(train(coordinator, 2))
    assert (job.work.steps, job.work.tokens) == (steps(1, 4), 40)
    assert coordinator.tally.deltas_refused == 1


def test_a_boundary_right_after_an_installation_uploads_no_zeros():
    coordinator = ready(install="replace")
    train(coordinator)
    coordinator.fetched(version(1))
    actions = train(coordinator)
    assert decisions(actions) == [InstallGlobal, StartPoll]
    assert not coordinator.uploading


# -- the baseline moves by what was sent -----------------------------------------------------------


def test_the_baseline_moves_when_a_delta_lands_and_not_before():
    coordinator = ready()
    job = job_of(train(coordinator, 2))
    assert coordinator.encoded() == []
    assert coordinator.unsent.steps == steps(1, 2)
    actions = coordinator.landed()
    assert actions[0] == AdvanceBaseline(replace(job, encoded=True))
    assert decisions(actions) == [AdvanceBaseline]
    assert coordinator.unsent.steps == NO_STEPS
    assert not coordinator.uploading


def test_steps_beyond_the_snapshot_stay_unsent_when_a_delta_lands():
    coordinator = ready()
    train(coordinator, 3)
    coordinator.landed()
    assert coordinator.unsent.steps == steps(3, 3)


def test_a_lane_that_ends_twice_changes_nothing_the_second_time():
    coordinator = ready()
    train(coordinator, 2)
    coordinator.landed()
    assert coordinator.landed() == []
    assert coordinator.refused("late") == []
    assert coordinator.tally.deltas_landed == 1


def test_many_deltas_go_out_one_after_the_other():
    coordinator = ready()
    for boundary in (2, 4, 6):
        assert job_of(train(coordinator, 2)).work.steps == steps(boundary - 1, boundary)
        coordinator.encoded()
        coordinator.landed()
    assert coordinator.tally.skipped_boundaries == 0


def test_a_delta_tells_the_base_of_its_oldest_step():
    coordinator = ready()
    train(coordinator)
    coordinator.fetched(version(3))
    job = job_of(train(coordinator))
    assert (job.base_outer_step, job.oldest_base_outer_step) == (3, 0)
    coordinator.landed()
    job = job_of(train(coordinator, 2))
    assert (job.base_outer_step, job.oldest_base_outer_step) == (3, 3)


# -- rebase ----------------------------------------------------------------------------------------


def test_rebase_installs_in_the_middle_of_an_inner_loop_and_keeps_every_step():
    coordinator = ready()
    train(coordinator)
    coordinator.fetched(version(1))
    actions = coordinator.settle(now=START)
    assert actions == [InstallGlobal(version(1), "rebase")]
    assert coordinator.unsent.steps == steps(1, 1)
    assert coordinator.tally.dropped == NO_STEPS
    assert job_of(train(coordinator)).work.steps == steps(1, 2)


def test_an_installation_does_not_cancel_a_job():
    coordinator = ready()
    train(coordinator, 2)
    coordinator.encoded()
    coordinator.fetched(version(1))
    assert decisions(train(coordinator)) == [InstallGlobal]
    assert coordinator.uploading
    assert decisions(coordinator.landed()) == [AdvanceBaseline]
    assert coordinator.unsent.steps == steps(3, 3)


def test_after_rebase_a_refused_job_is_folded_nowhere_since_it_never_left_the_difference():
    coordinator = ready()
    train(coordinator, 2)
    coordinator.encoded()
    coordinator.fetched(version(1))
    train(coordinator)
    assert decisions(coordinator.refused("409")) == []
    assert coordinator.unsent.steps == steps(1, 3)


@pytest.mark.parametrize("install", ["rebase", "boundary", "replace"])
def test_no_global_is_installed_while_a_job_is_measured_from_the_baseline(install: str):
    coordinator = ready(install=install)
    train(coordinator, 2)
    coordinator.fetched(version(1))
    assert coordinator.settle(now=START) == []
    assert decisions(train(coordinator)) == []


def test_a_job_that_the_global_contains_is_acknowledged_before_the_installation():
    coordinator = ready()
    train(coordinator, 2)
    coordinator.encoded()
    coordinator.fetched(version(1, merged_up_to=2))
    actions = train(coordinator)
    assert decisions(actions) == [AdvanceBaseline, InstallGlobal]
    assert coordinator.unsent.steps == steps(3, 3)
    assert coordinator.tally.deltas_landed == 1


def test_an_acknowledged_job_keeps_its_lane_busy_and_is_not_counted_twice():
    coordinator = ready()
    train(coordinator, 2)
    coordinator.encoded()
    coordinator.fetched(version(1, merged_up_to=2))
    train(coordinator)
    assert StartUpload not in decisions(train(coordinator))
    assert coordinator.tally.skipped_boundaries == 1
    assert coordinator.landed() == []
    assert coordinator.tally.deltas_landed == 1
    assert job_of(train(coordinator, 2)).work.steps == steps(3, 6)


def test_what_the_lane_says_of_an_acknowledged_job_folds_nothing_back():
    coordinator = ready(install="replace")
    train(coordinator, 2)
    coordinator.encoded()
    coordinator.fetched(version(1, merged_up_to=2))
    train(coordinator)
    assert coordinator.refused("late") == []
    assert coordinator.unsent.steps == NO_STEPS


@pytest.mark.parametrize("card", [version(1, merged_up_to=2, nonce="old"), version(1)])
def test_a_row_of_another_nonce_acknowledges_nothing(card: GlobalCard):
    coordinator = ready()
    train(coordinator, 2)
    coordinator.encoded()
    coordinator.fetched(card)
    assert decisions(train(coordinator)) == [InstallGlobal]
    assert coordinator.unsent.steps == steps(1, 3)


# -- boundary --------------------------------------------------------------------------------------


def test_boundary_installs_right_after_the_hand_over_once_it_is_encoded():
    coordinator = ready(install="boundary")
    train(coordinator)
    coordinator.fetched(version(1))
    assert coordinator.waits_for is None
    actions = train(coordinator)
    assert decisions(actions) == [StartUpload, StartPoll]
    assert coordinator.waits_for == "upload"
    assert coordinator.settle(now=START) == []
    coordinator.encoded()
    assert coordinator.waits_for == "global"
    assert coordinator.settle(now=START) == [InstallGlobal(version(1), "boundary")]
    assert coordinator.waits_for is None
    assert coordinator.tally.dropped == NO_STEPS


def test_boundary_never_installs_in_the_middle_of_an_inner_loop():
    coordinator = ready(install="boundary")
    train(coordinator)
    coordinator.fetched(version(1))
    assert coordinator.settle(now=START) == []


def test_boundary_never_installs_on_a_skipped_boundary():
    coordinator = ready(install="boundary")
    train(coordinator, 2)
    coordinator.encoded()
    train(coordinator)
    coordinator.fetched(version(1))
    actions = train(coordinator)
    assert decisions(actions) == [StartPoll]
    assert events(actions) == ["boundary_skipped"]
    assert coordinator.settle(now=START) == []
    assert coordinator.waits_for is None


def test_boundary_installs_when_the_delta_landed_before_the_next_step():
    coordinator = ready(install="boundary")
    train(coordinator)
    coordinator.fetched(version(1))
    train(coordinator)
    coordinator.encoded()
    coordinator.landed()
    assert decisions(coordinator.settle(now=START)) == [InstallGlobal]


def test_boundary_waits_for_another_boundary_when_the_delta_was_refused_first():
    coordinator = ready(install="boundary")
    train(coordinator)
    coordinator.fetched(version(1))
    train(coordinator)
    coordinator.encoded()
    coordinator.refused("429")
    assert coordinator.settle(now=START) == []
    assert coordinator.waits_for is None
    assert job_of(train(coordinator, 2)).work.steps == steps(1, 4)


# -- replace, and jobs under an installation -------------------------------------------------------


def test_replace_drops_the_steps_since_the_last_hand_over_and_counts_them():
    coordinator = ready(install="replace")
    train(coordinator, 2)
    coordinator.encoded()
    coordinator.fetched(version(1))
    assert train(coordinator) == [InstallGlobal(version(1), "replace")]
    assert coordinator.tally.dropped == steps(3, 3)
    assert coordinator.unsent.steps == NO_STEPS


@pytest.mark.parametrize("install", ["boundary", "replace"])
def test_a_job_that_lands_after_an_installation_moves_no_baseline(install: str):
    coordinator = installed_over_a_job(install)
    assert decisions(coordinator.landed()) == []
    assert coordinator.tally.deltas_landed == 1
    assert coordinator.tally.dropped == NO_STEPS
    assert job_of(train(coordinator, 2)).work.steps == steps(3, 4)


@pytest.mark.parametrize("install", ["boundary", "replace"])
def test_a_job_that_is_refused_after_an_installation_is_folded_back(install: str):
    coordinator = installed_over_a_job(install)
    (fold_back,) = [a for a in coordinator.refused("409") if isinstance(a, FoldBack)]
    assert fold_back.job.work.steps == steps(1, 2)
    assert coordinator.unsent.steps == steps(1, 2)
    job = job_of(train(coordinator, 2))
    assert job.work.steps == steps(1, 4)
    assert (job.base_outer_step, job.oldest_base_outer_step) == (1, 0)


def test_steps_that_were_folded_back_can_be_dropped_after_all():
    coordinator = installed_over_a_job("replace")
    coordinator.refused("409")
    coordinator.fetched(version(2))
    train(coordinator)
    assert coordinator.tally.dropped == steps(1, 3)


def test_a_second_installation_over_the_same_job_drops_only_what_came_after_it():
    coordinator = installed_over_a_job("replace")
    coordinator.fetched(version(2))
    train(coordinator)
    assert coordinator.tally.dropped == steps(3, 3)
    assert decisions(coordinator.landed()) == []


def installed_over_a_job(install: str) -> Coordinator:
    """Steps 1 and 2 are on their way, and global 1 was installed over them."""
    coordinator = ready(install=install)
    train(coordinator)
    if install == "boundary":
        coordinator.fetched(version(1))
    train(coordinator)
    if install == "replace":
        coordinator.fetched(version(1))
    coordinator.encoded()
    assert decisions(coordinator.settle(now=START)) == [InstallGlobal]
    return coordinator


# -- deltas that are not sent ----------------------------------------------------------------------


def test_an_all_zero_delta_is_not_sent_and_its_steps_go_out_later():
    coordinator = ready()
    train(coordinator, 2)
    assert decisions(coordinator.spoiled("zero")) == []
    assert coordinator.waits_for is None
    assert job_of(train(coordinator, 2)).work.steps == steps(1, 4)
    assert coordinator.tally.dropped == NO_STEPS


@pytest.mark.parametrize("install", ["rebase", "boundary", "replace"])
def test_a_node_that_is_not_finite_starts_over_from_the_newest_global(install: str):
    coordinator = ready(install=install)
    train(coordinator, 2)
    coordinator.nothing_new()
    assert events(coordinator.spoiled("not finite")) == ["delta_not_finite"]
    assert coordinator.waits_for == "global"
    assert coordinator.settle(now=START) == [StartPoll(anew=True)]
    coordinator.fetched(version(0))
    actions = coordinator.settle(now=START)
    assert actions == [InstallGlobal(version(0), "replace"), ResetOptimizer()]
    assert coordinator.tally.dropped == steps(1, 2)
    assert coordinator.waits_for is None


def test_recovery_takes_a_global_that_is_already_here():
    coordinator = ready(install="boundary")
    train(coordinator)
    coordinator.fetched(version(1))
    train(coordinator)
    coordinator.spoiled("not finite")
    assert InstallGlobal(version(1), "replace") in coordinator.settle(now=START)


def test_recovery_takes_no_older_global():
    coordinator = ready()
    coordinator.fetched(version(3))
    train(coordinator, 2)
    coordinator.spoiled("not finite")
    coordinator.fetched(version(2))
    assert InstallGlobal not in decisions(coordinator.settle(now=START))
    assert coordinator.waits_for == "global"


def test_a_recovering_node_hands_nothing_over():
    coordinator = ready(inner_steps=1)
    train(coordinator)
    coordinator.spoiled("not finite")
    assert StartUpload not in decisions(train(coordinator))
    assert coordinator.finish() == []
    assert coordinator.tally.dropped == steps(1, 2)


def test_bad_deltas_in_a_row_end_the_node_with_the_setting_in_the_message():
    coordinator = ready(max_bad_deltas=2)
    assert Fail not in decisions(bad_boundary(coordinator))
    (fail,) = [a for a in bad_boundary(coordinator) if isinstance(a, Fail)]
    assert "diloco.max_bad_deltas=2" in fail.message


def test_a_good_delta_ends_the_row_of_bad_ones():
    coordinator = ready(max_bad_deltas=2)
    bad_boundary(coordinator)
    train(coordinator, 2)
    coordinator.landed()
    assert Fail not in decisions(bad_boundary(coordinator))


def bad_boundary(coordinator: Coordinator) -> list[Action]:
    """Two steps, a delta that is not finite, and the recovery from it."""
    train(coordinator, 2)
    actions = coordinator.spoiled("not finite")
    coordinator.fetched(version(coordinator.base_outer_step))
    coordinator.settle(now=START)
    return actions


def test_steps_of_a_zero_delta_that_an_installation_replaced_go_out_later():
    coordinator = installed_over_a_job("replace")
    coordinator.spoiled("zero")
    assert coordinator.unsent.steps == steps(1, 2)
    assert coordinator.tally.dropped == NO_STEPS


def test_steps_of_a_bad_delta_that_an_installation_replaced_count_as_dropped():
    coordinator = installed_over_a_job("replace")
    coordinator.spoiled("not finite")
    assert coordinator.unsent.steps == NO_STEPS
    assert coordinator.tally.dropped == steps(1, 2)


# -- polls -----------------------------------------------------------------------------------------


def test_between_boundaries_a_node_asks_at_most_once_per_poll_interval():
    coordinator = ready(inner_steps=1000, poll_interval=60.0)
    first = micros(WAITING_POLL)
    assert train(coordinator, now=Micros(first - 1)) == []
    assert train(coordinator, now=first) == [StartPoll()]
    coordinator.nothing_new()
    assert train(coordinator, now=Micros(first + micros(60) - 1)) == []
    assert train(coordinator, now=Micros(first + micros(60))) == [StartPoll()]


def test_one_poll_is_under_way_at_a_time():
    coordinator = ready()
    assert StartPoll in decisions(train(coordinator, 2))
    assert StartPoll not in decisions(train(coordinator, 2))
    coordinator.nothing_new()
    assert StartPoll in decisions(train(coordinator, 2))


@pytest.mark.parametrize("old", [version(3), version(2), version(9, epoch=0)])
def test_a_global_that_is_not_newer_is_not_installed(old: GlobalCard):
    coordinator = node()
    coordinator.fetched(version(3, epoch=1))
    coordinator.settle(now=START)
    coordinator.fetched(old)
    assert coordinator.settle(now=START) == []
    assert coordinator.seen == (1, 3)


def test_a_new_master_epoch_is_newer_whatever_its_step():
    coordinator = ready()
    coordinator.fetched(version(0, epoch=1))
    assert decisions(coordinator.settle(now=START)) == [InstallGlobal]


def test_a_global_that_waits_is_replaced_by_a_newer_one_only():
    coordinator = ready(install="boundary")
    train(coordinator)
    coordinator.fetched(version(2))
    assert (coordinator.seen, coordinator.known) == ((0, 0), (0, 2))
    coordinator.fetched(version(1))
    assert coordinator.known == (0, 2)
    coordinator.fetched(version(3))
    assert coordinator.known == (0, 3)


def test_the_word_to_stop_is_heeded_with_or_without_new_weights():
    with_weights, without = ready(), ready()
    with_weights.fetched(version(1, stop="run.max_tokens=5 reached"))
    without.nothing_new(version(0, stop="run.max_tokens=5 reached"))
    assert with_weights.stop_reason == without.stop_reason == "run.max_tokens=5 reached"
    without.nothing_new(version(0, stop="another"))
    assert without.stop_reason == "run.max_tokens=5 reached"


# -- what the master says of this node's deltas ----------------------------------------------------


def test_a_rejected_delta_is_told_once_with_what_it_covers():
    coordinator = ready()
    train(coordinator, 2)
    coordinator.landed()
    card = version(0, merged_up_to=2, rejected=((2, "norm"),))
    assert events(coordinator.nothing_new(card)) == ["delta_rejected"]
    assert coordinator.nothing_new(card) == []
    assert coordinator.tally.rejected == {2: (steps(1, 2), "norm")}
    assert coordinator.tally.awaiting == {}


def test_a_rejection_that_is_heard_before_the_lane_ends_keeps_what_it_covers():
    coordinator = ready()
    train(coordinator, 2)
    coordinator.encoded()
    card = version(1, merged_up_to=2, rejected=((2, "norm"),))
    coordinator.fetched(card)
    assert decisions(coordinator.settle(now=START)) == [AdvanceBaseline, InstallGlobal]
    assert coordinator.tally.rejected == {2: (steps(1, 2), "norm")}
    assert coordinator.tally.awaiting == {}


def test_a_delta_awaits_the_global_that_contains_it():
    coordinator = ready()
    train(coordinator, 2)
    coordinator.landed()
    assert coordinator.tally.awaiting == {2: steps(1, 2)}
    coordinator.nothing_new(version(0, merged_up_to=1))
    assert coordinator.tally.awaiting == {2: steps(1, 2)}
    coordinator.nothing_new(version(0, merged_up_to=2))
    assert coordinator.tally.awaiting == {}


# -- blocking lanes --------------------------------------------------------------------------------


def test_a_blocking_upload_holds_the_training_until_its_lane_ends():
    coordinator = ready(async_delta_upload=False)
    train(coordinator, 2)
    assert coordinator.waits_for == "upload"
    coordinator.encoded()
    assert coordinator.waits_for == "upload"
    coordinator.landed()
    assert coordinator.waits_for is None


def test_a_blocking_poll_holds_the_training_until_what_it_found_is_installed():
    coordinator = ready(async_global_poll=False)
    train(coordinator, 2)
    coordinator.landed()
    assert coordinator.waits_for == "poll"
    coordinator.fetched(version(1))
    assert coordinator.waits_for == "global"
    assert decisions(coordinator.settle(now=START)) == [InstallGlobal]
    assert coordinator.waits_for is None


def test_a_blocking_poll_that_finds_nothing_lets_the_training_go_on():
    coordinator = ready(async_global_poll=False)
    train(coordinator, 2)
    coordinator.nothing_new()
    assert coordinator.waits_for is None


def test_lanes_in_the_background_hold_nothing():
    coordinator = ready()
    train(coordinator, 2)
    assert coordinator.uploading
    assert coordinator.waits_for is None


# -- the inner optimizer ---------------------------------------------------------------------------


def test_the_inner_optimizer_is_reset_after_each_job_and_each_installation():
    coordinator = ready(reset_inner_optimizer=True)
    assert decisions(train(coordinator, 2)) == [StartUpload, ResetOptimizer, StartPoll]
    coordinator.encoded()
    assert ResetOptimizer not in decisions(train(coordinator, 2))
    coordinator.fetched(version(1))
    assert decisions(coordinator.settle(now=START)) == [InstallGlobal, ResetOptimizer]


# -- the end ---------------------------------------------------------------------------------------


def test_what_is_unsent_goes_out_as_a_last_delta_at_any_step():
    coordinator = ready(reset_inner_optimizer=True)
    train(coordinator)
    actions = coordinator.finish()
    assert decisions(actions) == [StartUpload]
    job = job_of(actions)
    assert (job.local_step, job.work.steps, job.final) == (1, steps(1, 1), True)


def test_nothing_is_sent_at_the_end_when_everything_is():
    coordinator = ready()
    train(coordinator, 2)
    coordinator.landed()
    assert coordinator.finish() == []


def test_a_last_delta_that_was_refused_can_be_sent_again():
    coordinator = ready()
    train(coordinator)
    coordinator.finish()
    coordinator.refused("409")
    assert job_of(coordinator.finish()).work.steps == steps(1, 1)


# -- names and numbers -----------------------------------------------------------------------------


def test_a_job_is_known_by_the_number_of_its_file():
    """In a run that a peer led before: the mark of an older delta lies beyond the job's step."""
    coordinator = ready()
    train(coordinator, 2)
    coordinator.encoded(number=5)
    coordinator.landed()
    train(coordinator, 2)
    coordinator.encoded(number=7)
    coordinator.fetched(version(1, merged_up_to=5))
    assert events(coordinator.settle(now=START)) == []
    coordinator.fetched(version(2, merged_up_to=7))
    assert events(coordinator.settle(now=START)) == ["delta_landed"]


def test_a_delta_that_lies_under_another_number_is_rejected_under_it():
    coordinator = ready()
    train(coordinator, 2)
    coordinator.encoded(number=5)
    coordinator.landed()
    coordinator.nothing_new(version(0, merged_up_to=5, rejected=((5, "norm"),)))
    assert coordinator.tally.rejected == {5: (StepRanges.of(1, 2), "norm")}
    assert not coordinator.tally.awaiting


def test_a_node_stops_when_another_has_taken_over_its_name():
    settings = DilocoSettings(inner_steps=2)
    coordinator = Coordinator(settings, node_id="n1", nonce="abc", forerunners={"old"})
    assert coordinator.nothing_new(version(0, merged_up_to=4, nonce="old")) == []
    assert coordinator.nothing_new(version(0, merged_up_to=4, nonce="abc")) == []
    (failure,) = coordinator.nothing_new(version(0, merged_up_to=4, nonce="new"))
    assert failure == Fail("another process has taken over this node id", fenced=True)


def test_a_run_that_goes_on_is_not_over_because_its_last_global_says_so():
    settings = DilocoSettings(inner_steps=2)
    coordinator = Coordinator(settings, node_id="n1", nonce="abc", over="p7")
    ended = replace(version(7, stop="every node is done"), publication_id="p7")
    coordinator.nothing_new(ended)
    assert coordinator.stop_reason is None
    coordinator.nothing_new(replace(ended, publication_id="p8"))
    assert coordinator.stop_reason == "every node is done"


def test_weights_that_went_bad_before_any_global_go_back_to_the_baseline():
    coordinator = node(require_global=False)
    train(coordinator, 2)
    coordinator.spoiled("not finite")
    assert coordinator.waits_for == "global"
    actions = coordinator.nothing_new()
    assert decisions(actions) == [ReturnToBaseline, ResetOptimizer]
    assert coordinator.waits_for is None
    assert coordinator.tally.dropped == StepRanges.of(1, 2)
    assert job_of(train(coordinator, 2)).work.steps == StepRanges.of(3, 4)


def test_a_node_that_needs_a_global_goes_on_waiting_for_one_after_its_weights_went_bad():
    coordinator = ready()
    train(coordinator, 2)
    coordinator.spoiled("not finite")
    assert coordinator.nothing_new() == []
    assert coordinator.waits_for == "global"


# -- a restart -------------------------------------------------------------------------------------


def again(coordinator: Coordinator, **settings: Any) -> tuple[Coordinator, list[Action]]:
    """Another coordinator that stands where this one stands."""
    other = node(**settings)
    return other, other.resume(coordinator.standing(), now=START)


def test_after_a_restart_a_newer_global_is_looked_for_at_once():
    coordinator = ready()
    train(coordinator, 3)
    other, actions = again(coordinator)
    assert decisions(actions) == [StartPoll]
    assert (other.local_step, other.unsent, other.seen) == (3, coordinator.unsent, (0, 0))


def test_after_a_restart_a_job_is_on_its_way_still():
    coordinator = ready()
    train(coordinator, 2)
    coordinator.encoded()
    other, _ = again(coordinator)
    train(other)
    assert decisions(other.landed()) == [AdvanceBaseline]
    assert other.unsent.steps == StepRanges.of(3, 3)


def test_after_a_restart_a_job_that_a_global_had_is_over():
    coordinator = ready()
    train(coordinator, 2)
    coordinator.encoded()
    coordinator.fetched(version(1, merged_up_to=2))
    coordinator.settle(now=START)
    assert coordinator.uploading
    other, _ = again(coordinator)
    assert not other.uploading
    assert not other.unsent


def test_what_follows_a_standing_does_not_change_it():
    coordinator = ready()
    train(coordinator, 2)
    coordinator.encoded()
    standing = coordinator.standing()
    coordinator.landed()
    coordinator.nothing_new(version(0, merged_up_to=2, rejected=((2, "norm"),)))
    assert (standing.tally.awaiting, standing.tally.rejected) == ({}, {})


def test_a_standing_behind_what_was_sent_is_lost_or_was_sent():
    coordinator = ready()
    train(coordinator, 3)
    other = node()
    other.resume_behind(coordinator.standing(), sent_up_to=8)
    assert other.local_step == 8
    assert other.tally.lost == StepRanges.of(1, 8)
    assert other.waits_for == "global"
    assert decisions(other.settle(now=START)) == [StartPoll]
    other.fetched(version(4))
    (install, _reset) = [a for a in other.settle(now=START) if not isinstance(a, Record)]
    assert install == InstallGlobal(version(4), "replace")
    assert other.waits_for is None
    assert not other.unsent


def test_a_moment_with_a_job_that_has_no_record_is_not_kept():
    coordinator = ready()
    train(coordinator, 2)
    assert not coordinator.keepable
    coordinator.encoded()
    assert coordinator.keepable
    coordinator.spoiled("not finite")
    assert not coordinator.keepable


# -- waiting for what became of a delta ------------------------------------------------------------


def published(outer_step: int, **row: Any) -> GlobalCard:
    """A global of a master that tells what it merged."""
    return replace(version(outer_step, **row), publication_id=f"p{outer_step}")


def sent(**settings: Any) -> Coordinator:
    """A node that waits, with a delta of two steps on its way."""
    coordinator = ready(**({"wait_for_merge": True} | settings))
    train(coordinator, 2)
    coordinator.encoded()
    return coordinator


@pytest.mark.parametrize("settings", [{"wait_for_merge": True}, {"merge": "synchronous"}])
def test_a_node_that_waits_trains_on_when_a_global_has_its_delta(settings):
    coordinator = sent(**settings)
    coordinator.landed()
    assert coordinator.waits_for == "merge"
    coordinator.fetched(published(1, merged_up_to=2))
    assert coordinator.waits_for == "global"  # which is to be installed
    assert InstallGlobal in decisions(coordinator.settle(now=START))
    assert coordinator.waits_for is None


def test_a_global_without_its_delta_is_installed_and_does_not_end_the_waiting():
    coordinator = sent()
    coordinator.landed()
    coordinator.fetched(published(1, merged_up_to=0))
    coordinator.settle(now=START)
    assert (coordinator.base_outer_step, coordinator.waits_for) == (1, "merge")
    coordinator.fetched(published(2, merged_up_to=2))
    coordinator.settle(now=START)
    assert coordinator.waits_for is None


def test_a_node_that_waits_polls_until_there_is_something_new():
    coordinator = ready(wait_for_merge=True, poll_interval=7.0)
    (*_, poll) = train(coordinator, 2)
    assert poll == StartPoll(every=micros(7.0))
    coordinator.nothing_new()
    assert coordinator.settle(now=START) == []
    assert coordinator.settle(now=micros(7.0)) == [poll]


def test_a_poll_that_was_under_way_at_the_boundary_is_followed_by_one_at_once():
    coordinator = ready(wait_for_merge=True)
    train(coordinator)
    coordinator._poll(START)
    assert StartPoll not in decisions(train(coordinator))
    coordinator.nothing_new()
    assert decisions(coordinator.settle(now=Micros(1))) == [StartPoll]


@pytest.mark.parametrize("end", ["refused", "zero", "not finite"])
def test_a_node_does_not_wait_for_a_delta_that_was_never_sent(end):
    coordinator = sent()
    coordinator.refused("quota") if end == "refused" else coordinator.spoiled(end)
    assert coordinator.waits_for == ("global" if end == "not finite" else None)


def test_a_node_does_not_wait_for_a_delta_that_the_master_rejects():
    coordinator = sent()
    coordinator.landed()
    coordinator.nothing_new(published(0, merged_up_to=2, rejected=((2, "norm"),)))
    assert coordinator.waits_for is None


def test_where_a_plain_peer_leads_any_newer_global_ends_the_waiting():
    coordinator = sent()
    coordinator.encoded(number=3)
    coordinator.landed()
    coordinator.fetched(version(1))
    coordinator.settle(now=START)
    assert coordinator.waits_for is None


def test_after_a_restart_a_node_waits_for_the_job_that_it_had():
    other, _ = again(sent(), wait_for_merge=True)
    other.landed()
    assert other.waits_for == "merge"


def test_a_node_does_not_wait_after_its_last_delta():
    coordinator = ready(wait_for_merge=True)
    train(coordinator)
    coordinator.finish()
    assert coordinator.waits_for is None
