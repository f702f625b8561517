import pytest
from recorded import EVENTS, RESULT, SECOND, event, upload, write_run

from ray_diloco.experiment.report.run_records import read_run
from ray_diloco.experiment.report.spans import Span, last_moment, node_spans, utilisation

FLAKY = """
run: {run_id: by-hand}
time: {kind: virtual}
cluster:
  nodes: 1
  profiles: [{seconds_per_step: 1.0, crash_at: 5.0, recover_after: 3.0}]
"""


def told(spans: list[Span]) -> list[tuple[str, float, float]]:
    return [(span.kind, span.start / SECOND, span.end / SECOND) for span in spans]


def test_a_node_waits_then_trains_while_its_transfers_run_beside(tmp_path):
    spans = node_spans(read_run(write_run(tmp_path)))
    assert told(spans["n0"]) == [
        ("waiting", 0, 1),
        ("compute", 1, 3),
        ("compute", 3, 9),
        ("upload", 3, 4),
        ("download", 5, 6),
    ]


def test_a_node_that_came_later_has_nothing_before(tmp_path):
    assert told(node_spans(read_run(write_run(tmp_path)))["n1"])[0] == ("compute", 2, 7)


CRASHED = [
    event("node_started", "n0", 0, first_step=0, resumed=None),
    upload("n0", 4, 10),
    event("upload_resumed", "n0", 8, local_step=10, covers="1-10"),
    event("node_started", "n0", 8, first_step=0, resumed=10),
    event("node_stopping", "n0", 10, local_step=20, reason="done"),
]


def test_a_simulated_node_trains_until_its_scenario_kills_it(tmp_path):
    run = read_run(write_run(tmp_path, events=CRASHED, config=FLAKY))
    assert told(node_spans(run)["n0"]) == [
        ("crashed", 5, 8),
        ("compute", 0, 4),
        ("compute", 4, 5),
        ("compute", 8, 10),
    ]


def test_a_real_node_is_away_from_its_last_sign(tmp_path):
    run = read_run(write_run(tmp_path, events=CRASHED, config="time: {kind: wall}"))
    assert ("crashed", 4, 8) in told(node_spans(run)["n0"])


@pytest.mark.parametrize(("result", "away"), [(RESULT, 1), (None, 0)])
def test_only_a_run_that_has_ended_knows_who_did_not_come_back(tmp_path, result, away):
    events = [*EVENTS[:4], *EVENTS[7:11]]
    run = read_run(write_run(tmp_path, events=events, result=result))
    kinds = [kind for kind, _, _ in told(node_spans(run)["n0"])]
    assert kinds.count("crashed") == away


def test_shares_of_a_nodes_time_sum_to_one(tmp_path):
    run = read_run(write_run(tmp_path))
    shares = utilisation(node_spans(run)["n0"], last_moment(run))
    assert shares == pytest.approx(
        {"compute": 8 / 12, "waiting": 1 / 12, "crashed": 0, "done or idle": 3 / 12}
    )
