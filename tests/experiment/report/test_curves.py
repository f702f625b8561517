from recorded import EVENTS, SECOND, delta, event, upload, write_run

from ray_diloco.experiment.report.curves import eval_points, train_points
from ray_diloco.experiment.report.run_records import read_run


def test_a_held_out_loss_stands_where_its_global_was_published(tmp_path):
    first, second = eval_points(read_run(write_run(tmp_path)))
    assert (first.loss, first.at, first.outer_step, first.tokens) == (3.5, 5 * SECOND, 1, 100)
    assert (second.at, second.delta_bytes) == (8 * SECOND, 1000)


def test_a_closing_publication_of_the_same_global_does_not_move_it(tmp_path):
    closing = event("publication", "n0/master", 11, outer_step=2, deltas=[], tokens_total=200)
    points = eval_points(read_run(write_run(tmp_path, events=[*EVENTS, closing])))
    assert points[-1].at == 8 * SECOND


def test_a_training_loss_stands_at_its_upload_and_at_the_round_that_merged_it(tmp_path):
    curves = train_points(read_run(write_run(tmp_path)))
    (point,) = curves["n1"]
    assert (point.loss, point.at, point.outer_step) == (3.8, 7 * SECOND, 2)
    assert (point.tokens, point.delta_bytes) == (200, 1000)


def test_a_delta_that_was_not_merged_is_only_on_the_axis_of_time(tmp_path):
    curves = train_points(read_run(write_run(tmp_path, events=[*EVENTS, upload("n0", 9, 20)])))
    assert curves["n0"][-1].at == 9 * SECOND
    assert curves["n0"][-1].outer_step is None


def test_a_loss_that_is_no_number_is_left_out(tmp_path):
    events = [
        upload("n0", 1, 10, "nan"),
        event("evaluation", "m", 2, outer_step=0, loss="inf", tokens_total=0),
    ]
    run = read_run(write_run(tmp_path, events=events))
    assert (eval_points(run), train_points(run)) == ([], {})


def test_nodes_are_in_the_order_of_their_numbers(tmp_path):
    events = [upload(node, 1, 10) for node in ("n10", "n2", "n1")]
    assert list(train_points(read_run(write_run(tmp_path, events=events)))) == ["n1", "n2", "n10"]


def test_bytes_are_those_of_all_deltas_until_then(tmp_path):
    both = event(
        "publication", "n0/master", 9, outer_step=3, tokens_total=400,
        deltas=[delta("n0", 20), delta("n1", 20)],
    )  # fmt: skip
    last = event("evaluation", "n0/master", 9.5, outer_step=3, loss=2.0, tokens_total=400)
    points = eval_points(read_run(write_run(tmp_path, events=[*EVENTS, both, last])))
    assert [point.delta_bytes for point in points] == [500, 1000, 2000]
