import pytest

from ray_diloco.node.actions import Record, StartUpload
from ray_diloco.node.coordinator import Coordinator
from ray_diloco.node.silence import never_silent, silent_by_lot
from ray_diloco.protocol.clock import Micros
from ray_diloco.protocol.ranges import StepRanges
from ray_diloco.protocol.settings import DilocoSettings


def test_about_the_asked_share_of_boundaries_is_silent_and_each_node_draws_its_own():
    one = [silent_by_lot(0.5, run_seed=0, node_id="n0")(step) for step in range(2000)]
    other = [silent_by_lot(0.5, run_seed=0, node_id="n1")(step) for step in range(2000)]
    assert sum(one) == pytest.approx(1000, abs=100)
    assert one != other
    assert one == [silent_by_lot(0.5, run_seed=0, node_id="n0")(step) for step in range(2000)]


def test_without_a_share_no_boundary_is_silent():
    assert not any(silent_by_lot(0.0, run_seed=0, node_id="n0")(step) for step in range(1000))
    assert not never_silent(7)


def test_what_was_not_sent_goes_out_with_the_next_delta_and_is_not_waited_for():
    settings = DilocoSettings(inner_steps=2, require_global=False, wait_for_merge=True)
    coordinator = Coordinator(settings, node_id="n", nonce="x", silent=lambda step: step == 2)
    actions = [coordinator.stepped(now=Micros(0), tokens=1, loss=1.0) for _ in range(2)]
    assert Record("boundary_skipped", {"local_step": 2, "reason": "silent by lot"}) in actions[1]
    assert coordinator.waits_for is None
    coordinator.stepped(now=Micros(0), tokens=1, loss=1.0)
    sent = coordinator.stepped(now=Micros(0), tokens=1, loss=1.0)
    (upload,) = [each for each in sent if isinstance(each, StartUpload)]
    assert upload.job.work.steps == StepRanges.of(1, 4)
