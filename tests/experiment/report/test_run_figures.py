from recorded import EVENTS, SECOND, event, upload, write_run

from ray_diloco.experiment.report.axes import unit_for
from ray_diloco.experiment.report.run_figures import (
    MOST_NAMED_CURVES,
    loss_figure,
    staleness_figure,
    traffic_rows,
)
from ray_diloco.experiment.report.run_records import read_run
from ray_diloco.experiment.report.spans import Span
from ray_diloco.experiment.report.timeline_figure import MOST_SPANS, thinned, timeline_figure


def test_a_loss_can_be_drawn_over_each_axis(tmp_path):
    figure = loss_figure([read_run(write_run(tmp_path))])
    held_out = figure["data"][0]
    assert (held_out["x"], held_out["y"]) == ([5.0, 8.0], [3.5, 2.5])
    places = {name: axis["xs"][0] for name, axis in figure["axes"].items()}
    assert places == {
        "time": [5.0, 8.0],
        "outer_step": [1, 2],
        "tokens": [100, 200],
        "bytes": [0.0005, 0.001],
    }


def test_several_runs_have_a_curve_each(tmp_path):
    runs = [read_run(write_run(tmp_path / name)) for name in "ab"]
    assert [trace["name"] for trace in loss_figure(runs)["data"]] == ["by-hand", "by-hand"]


def test_many_nodes_share_one_entry_of_the_legend(tmp_path):
    events = [upload(f"n{number}", 1, 10) for number in range(MOST_NAMED_CURVES + 1)]
    figure = loss_figure([read_run(write_run(tmp_path, events=[*EVENTS[4:6], *events]))])
    training = figure["data"][1:]
    assert len(training) == MOST_NAMED_CURVES + 1
    assert [trace["showlegend"] for trace in training].count(True) == 1


def test_staleness_is_counted_at_every_age(tmp_path):
    late = {"node": "n1", "local_step": 20, "staleness": 3, "bytes": 1}
    events = [*EVENTS, event("publication", "m", 9, outer_step=3, deltas=[late], tokens_total=1)]
    bars = staleness_figure(read_run(write_run(tmp_path, events=events)))["data"][0]
    assert (bars["x"], bars["y"]) == ([0, 1, 2, 3], [1, 1, 0, 1])


def test_what_no_node_moved_was_the_masters(tmp_path):
    rows = traffic_rows(read_run(write_run(tmp_path)))
    assert rows == [("n0", 1000, 3000), ("n1", 1000, 3000), ("master", 3000, 1000)]


def test_the_timeline_has_a_lane_for_each_node_and_a_line_for_each_round(tmp_path):
    figure = timeline_figure(read_run(write_run(tmp_path)))
    assert figure["layout"]["yaxis"]["ticktext"] == ["master", "n0", "n1"]
    assert [shape["x0"] for shape in figure["layout"]["shapes"]] == [5.0, 8.0]
    drawn = {trace["name"]: trace for trace in figure["data"]}
    assert set(drawn) == {"compute", "waiting", "upload", "download", "rounds"}
    assert (drawn["upload"]["base"], drawn["upload"]["x"]) == ([3.0], [1.0])


def test_a_run_without_any_event_can_be_drawn(tmp_path):
    run = read_run(write_run(tmp_path, events=[], result=None))
    assert timeline_figure(run)["data"] == []
    assert loss_figure([run])["data"][0]["x"] == []


def test_many_short_spans_become_few_long_ones():
    spans = [
        Span(node="n0", kind="compute", start=at * 10, end=at * 10 + 9, text="")
        for at in range(3 * MOST_SPANS)
    ]
    kept = thinned(spans, spans[-1].end)
    assert len(kept) <= MOST_SPANS
    assert (kept[0].start, kept[-1].end) == (spans[0].start, spans[-1].end)


def test_long_runs_are_told_in_long_units():
    names = [unit_for(seconds * SECOND).name for seconds in (599, 600, 4 * 3600)]
    assert names == ["seconds", "minutes", "hours"]
