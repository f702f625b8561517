"""What dies with a node, from the events of its lives."""

import pytest

from ray_diloco.experiment.lives import CrashLosses, crash_losses
from ray_diloco.protocol.ranges import StepRanges

ACCOUNTS = {"n0": {"first": {"merged": "1-10"}}}


def started(nonce, first_step=0, resumed=None):
    return {
        "event": "node_started",
        "participant": "n0",
        "nonce": nonce,
        "first_step": first_step,
        "resumed": resumed,
    }


def ended(event, local_step):
    return {"event": event, "participant": "n0", "local_step": local_step}


@pytest.mark.parametrize("event", ["crashed", "node_failed"])
def test_who_goes_on_without_a_checkpoint_has_lost_what_was_never_merged(event):
    events = [started("first"), ended(event, 25), started("second", first_step=10)]
    assert crash_losses(events, ACCOUNTS).lost == {"n0": 15}


@pytest.mark.parametrize("event", ["crashed", "node_failed"])
def test_who_goes_on_from_a_checkpoint_trains_again_what_came_after_it(event):
    events = [started("first"), ended(event, 25), started("first", resumed=20)]
    events.append(ended("node_stopping", 60))
    assert crash_losses(events, ACCOUNTS) == CrashLosses({}, {"n0": 5})


@pytest.mark.parametrize("event", ["crashed", "node_failed"])
def test_who_ends_before_it_has_trained_all_of_it_again_has_lost_the_rest(event):
    events = [started("first"), ended(event, 25), started("first", resumed=20)]
    events.append(ended("node_stopping", 22))
    assert crash_losses(events, ACCOUNTS) == CrashLosses({"n0": 3}, {"n0": 2})


def test_what_is_lost_in_the_end_is_lost_once_however_often_it_was_trained():
    events = [started("first"), ended("crashed", 25), started("first", resumed=20)]
    events += [ended("crashed", 23), started("second", first_step=10)]
    assert crash_losses(events, ACCOUNTS) == CrashLosses({"n0": 15}, {"n0": 3})


def test_what_only_the_claim_of_the_name_tells_of_is_lost_when_the_records_are():
    accounts = {"n0": {"unknown": {"merged": "1-4"}, "second": {"merged": "7-60"}}}
    events = [started("second", first_step=6) | {"left_at": 6}, ended("node_stopping", 60)]
    assert crash_losses([{"event": "session_killed"}, *events], accounts).lost == {"n0": 2}
    assert crash_losses(events, accounts).lost == {}  # the name is from before the run


def test_what_a_report_tells_of_is_not_lost_once_more():
    events = [started("first"), ended("node_stopping", 20), started("first", resumed=20)]
    events += [ended("crashed", 25), started("second", first_step=10)]
    told = {("n0", "first"): StepRanges.of(11, 13)}
    assert crash_losses(events, ACCOUNTS, told=told).lost == {"n0": 12}


def test_what_a_failed_node_has_lost_is_not_known_before_it_goes_on():
    assert crash_losses([started("first"), ended("node_failed", 25)], ACCOUNTS).lost == {}
    assert crash_losses([started("first"), ended("crashed", 25)], ACCOUNTS).lost == {"n0": 15}


def test_a_failure_that_its_engine_tells_of_too_counts_once():
    events = [started("first"), ended("node_failed", 25), ended("crashed", 24)]
    events += [started("second", first_step=10), ended("node_stopping", 30)]
    assert crash_losses(events, ACCOUNTS).lost == {"n0": 15}
