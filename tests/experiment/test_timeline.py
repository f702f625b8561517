import json

import pytest

from ray_diloco.experiment.timeline import timeline


def happened(event, participant, at, **fields):
    return {"event": event, "participant": participant, "at": at, **fields}


DELTA = {"node": "a", "local_step": 10}
EVENTS = [
    happened("opened", "a/master", 0, outer_step=0),
    happened("node_started", "a", 0, first_step=0),
    happened("global_fetched", "a", 300, outer_step=0, began=100),
    happened("waited", "a", 300, began=0),
    happened("install", "a", 300, outer_step=0),
    happened("upload_started", "a", 1300, local_step=10, covers="1-10"),
    happened("delta_landed", "a", 1500, local_step=10, covers="1-10"),
    happened("publication", "a/master", 2100, began=2000, outer_step=1, deltas=[DELTA], stop=None),
    happened("global_fetched", "a", 2700, outer_step=1, began=2500),
    happened("node_stopping", "a", 2800, local_step=25),
]
NEEDED = {
    "M": {"name", "pid", "tid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "i": {"name", "cat", "pid", "tid", "ts", "s"},
    "s": {"name", "cat", "id", "pid", "tid", "ts"},
    "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
}


def spans(row, events=EVENTS):
    return {
        (each["name"], each["ts"], each["dur"])
        for each in timeline(events)["traceEvents"]
        if each["ph"] == "X" and each["cat"] == row
    }


def test_every_entry_has_what_the_format_asks_of_its_phase():
    told = json.loads(json.dumps(timeline(EVENTS)))
    assert told["displayTimeUnit"] == "ms"
    for each in told["traceEvents"]:
        assert set(each) >= NEEDED[each["ph"]]
        assert all(isinstance(each[key], int) for key in ("pid", "tid", "ts", "dur") if key in each)
        assert each.get("dur", 1) > 0


def test_rows_have_names():
    names = {
        (each["pid"], each["tid"], each["args"]["name"])
        for each in timeline(EVENTS)["traceEvents"]
        if each["ph"] == "M"
    }
    rows = {(1, 1, "compute"), (1, 2, "waiting"), (1, 3, "upload"), (1, 4, "download")}
    assert names == {(1, 0, "a"), (2, 0, "a/master"), (2, 1, "rounds")} | rows


def test_a_node_computes_when_it_does_not_wait_and_its_transfers_lie_beside():
    assert spans("compute") == {("steps 1-10", 300, 1000), ("steps 11-25", 1300, 1500)}
    assert spans("waiting") == {("waits", 0, 300)}
    assert spans("upload") == {("delta 10", 1300, 200)}
    assert spans("download") == {("global 0", 100, 200), ("global 1", 2500, 200)}
    assert spans("rounds") == {("outer step 0", 0, 1), ("outer step 1", 2000, 100)}


def test_arrows_lead_from_a_delta_to_its_round_and_from_a_global_to_its_fetches():
    flows = [each for each in timeline(EVENTS)["traceEvents"] if each["ph"] in "sf"]
    by_id = {}
    for each in flows:
        by_id.setdefault(each["id"], []).append((each["ph"], each["pid"], each["tid"], each["ts"]))
    assert by_id == {
        "delta a 10": [("s", 1, 3, 1300), ("f", 2, 1, 2000)],
        "global 0 a 300": [("s", 2, 1, 0), ("f", 1, 4, 100)],
        "global 1 a 2700": [("s", 2, 1, 2099), ("f", 1, 4, 2500)],
    }


@pytest.mark.parametrize("phase", ["s", "f"])
def test_both_ends_of_an_arrow_lie_in_a_slice(phase):
    told = timeline(EVENTS)["traceEvents"]
    slices = [each for each in told if each["ph"] == "X"]
    for end in (each for each in told if each["ph"] == phase):
        assert any(
            (each["pid"], each["tid"]) == (end["pid"], end["tid"])
            and each["ts"] <= end["ts"] < each["ts"] + each["dur"]
            for each in slices
        )
