from ray_diloco.experiment.tracking.points import final_points, points_of


def told(event) -> list[tuple]:
    return [(each.tag, each.value, each.axis, each.step) for each in points_of(event)]


def test_train_loss_runs_over_the_local_steps_of_its_node():
    event = {"event": "upload_started", "participant": "n1", "local_step": 20, "loss": 2.5}
    assert told(event) == [("train_loss/n1", 2.5, "local_step", 20)]


def test_a_publication_tells_what_it_merged_over_outer_steps():
    deltas = [{"staleness": 0}, {"staleness": 3}]
    event = {"event": "publication", "outer_step": 4, "tokens_total": 2048, "deltas": deltas}
    assert told(event) == [
        ("deltas_merged", 2.0, "outer_step", 4),
        ("staleness", 1.5, "outer_step", 4),
        ("tokens_total", 2048.0, "outer_step", 4),
    ]


def test_a_publication_without_deltas_has_no_staleness():
    event = {"event": "publication", "outer_step": 4, "tokens_total": 2048, "deltas": []}
    assert [tag for tag, *_ in told(event)] == ["deltas_merged", "tokens_total"]


def test_an_upload_whose_loss_nobody_knows_adds_nothing():
    assert told({"event": "upload_started", "participant": "n1", "local_step": 20}) == []
    assert told({"event": "waited", "participant": "n1"}) == []


def test_the_final_numbers_stand_at_the_last_outer_step_and_unknown_ones_nowhere():
    result = {"outer_steps": 7, "eval_loss": None, "tokens": 100, "status": "done"}
    points = final_points(result)
    assert {each.tag: each.value for each in points} == {
        "result/outer_steps": 7.0,
        "result/tokens": 100.0,
    }
    assert {each.step for each in points} == {7}
