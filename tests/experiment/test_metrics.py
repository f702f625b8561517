import pyarrow.parquet as pq
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ray_diloco.experiment.metrics import Curves, write_metrics
from ray_diloco.experiment.tracking.points import points_of

EVENTS = [
    {
        "event": "upload_started",
        "participant": "n0",
        "at": 500_000,
        "local_step": 20,
        "loss": 2.5,
        "final": False,
    },
    {
        "event": "publication",
        "participant": "n0/master",
        "at": 1_000_000,
        "outer_step": 1,
        "tokens_total": 2048,
        "deltas": [
            {"node": "n0", "local_step": 20, "staleness": 0, "loss": 2.5},
            {"node": "n1", "local_step": 20, "staleness": 3, "loss": 3},
        ],
    },
    {
        "event": "evaluation",
        "participant": "n0/master",
        "at": 1_200_000,
        "outer_step": 1,
        "loss": 2.25,
        "tokens_total": 2048,
    },
]


def test_the_table_has_a_row_for_each_event_and_each_merged_delta(tmp_path):
    write_metrics(EVENTS, tmp_path / "m.parquet")
    table = pq.read_table(tmp_path / "m.parquet")
    rows = table.to_pylist()
    assert [row["event"] for row in rows] == [
        "upload_started",
        "publication",
        "merged",
        "merged",
        "evaluation",
    ]
    assert [row["participant"] for row in rows[2:4]] == ["n0", "n1"]
    assert [row["at_seconds"] for row in rows] == [0.5, 1.0, 1.0, 1.0, 1.2]
    assert [row["loss"] for row in rows] == [2.5, None, 2.5, 3.0, 2.25]
    assert str(table.schema.field("staleness").type) == "int64"


def test_a_run_without_events_has_an_empty_table(tmp_path):
    write_metrics([], tmp_path / "m.parquet")
    assert pq.read_table(tmp_path / "m.parquet").num_rows == 0


def test_curves_run_over_local_steps_and_outer_steps(tmp_path):
    curves = Curves(tmp_path)
    curves.keep([point for event in EVENTS for point in points_of(event)])
    curves.close()
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    points = {tag: [(p.step, p.value) for p in read.Scalars(tag)] for tag in read.Tags()["scalars"]}
    assert points == {
        "train_loss/n0": [(20, 2.5)],
        "deltas_merged": [(1, 2.0)],
        "staleness": [(1, 1.5)],
        "tokens_total": [(1, 2048.0)],
        "eval_loss": [(1, 2.25)],
    }
