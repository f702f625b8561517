"""What dies with a node, from the events of its lives."""

import pytest

from ray_diloco.experiment.lives import crash_losses

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
    assert crash_losses(events, ACCOUNTS) == {"n0": 15}


@pytest.mark.parametrize("event", ["crashed", "node_failed"])
def test_who_goes_on_from_a_checkpoint_has_lost_what_came_after_it(event):
    events = [started("first"), ended(event, 25), started("first", resumed=20)]
    assert crash_losses(events, ACCOUNTS) == {"n0": 5}


def test_what_a_failed_node_has_lost_is_not_known_before_it_goes_on():
    assert crash_losses([started("first"), ended("node_failed", 25)], ACCOUNTS) == {}
    assert crash_losses([started("first"), ended("crashed", 25)], ACCOUNTS) == {"n0": 15}


def test_a_failure_that_its_engine_tells_of_too_counts_once():
    events = [started("first"), ended("node_failed", 25), ended("crashed", 24)]
    assert crash_losses([*events, started("first", resumed=20)], ACCOUNTS) == {"n0": 5}
