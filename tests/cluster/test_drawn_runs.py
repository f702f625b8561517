"""`timeline.json` of a whole run, by the rules of the trace event format."""

import json
from collections import Counter, defaultdict
from itertools import pairwise

import pytest
from small_runs import UNEQUAL, play

CUT_OFF = (
    "cluster.nodes=3",
    "run.max_steps=40",
    "+cluster.overrides.n0={up_mbps: 0.1, down_mbps: 0.1, crash_at: 0.5, recover_after: 1.0}",
    "+cluster.overrides.n2={up_mbps: 0.1, down_mbps: 0.1, crash_at: 5.8, recover_after: 3.0}",
)
"""One node dies while it fetches its first global, one while its delta is on its way."""
NEEDED = {"M": {"args"}, "X": {"ts", "dur"}, "i": {"ts", "s"}, "s": {"ts", "id"}, "f": {"ts", "id"}}


@pytest.fixture(scope="module", params=[UNEQUAL, CUT_OFF], ids=["unequal", "cut off"])
def drawn(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawn")
    _, events = play(folder, *request.param)
    told = json.loads((folder / "timeline.json").read_text())
    return told["traceEvents"], events


def row(entry):
    return entry["pid"], entry["tid"]


def test_every_entry_has_a_known_phase_a_place_and_whole_microseconds(drawn):
    for entry in drawn[0]:
        assert entry.keys() >= NEEDED[entry["ph"]] | {"name", "pid", "tid"}
        numbers = [entry[key] for key in ("pid", "tid", "ts", "dur") if key in entry]
        assert all(isinstance(each, int) and each >= 0 for each in numbers)


def test_slices_of_one_row_follow_each_other(drawn):
    rows = defaultdict(list)
    for entry in drawn[0]:
        if entry["ph"] == "X":
            rows[row(entry)].append((entry["ts"], entry["ts"] + entry["dur"], entry["name"]))
    assert len(rows) > 6  # of three nodes and the master
    for slices in rows.values():
        for before, after in pairwise(sorted(slices)):
            assert before[1] <= after[0], (before, after)


def test_each_arrow_has_one_start_and_one_end_and_both_lie_in_slices(drawn):
    entries, _ = drawn
    slices = [each for each in entries if each["ph"] == "X"]
    ends = defaultdict(dict)
    for entry in entries:
        if entry["ph"] in "sf":
            assert entry["ph"] not in ends[entry["id"]]
            ends[entry["id"]][entry["ph"]] = entry
            assert any(
                row(each) == row(entry) and each["ts"] <= entry["ts"] < each["ts"] + each["dur"]
                for each in slices
            ), entry
    for end in ends.values():
        assert end.keys() == {"s", "f"}
        assert end["s"]["ts"] <= end["f"]["ts"]
        assert {end["s"][key] for key in ("cat", "name")} == {
            end["f"][key] for key in ("cat", "name")
        }


def test_every_merged_delta_and_every_fetched_global_has_its_arrow(drawn):
    entries, events = drawn
    arrows = Counter(each["name"] for each in entries if each["ph"] == "s")
    assert arrows["delta"] == sum(len(each.get("deltas", ())) for each in events)
    assert arrows["global"] == sum(each["event"] == "global_fetched" for each in events)
