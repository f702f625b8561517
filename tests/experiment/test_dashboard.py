"""deploy/grafana-dashboard.json against the metrics that there are."""

import json
import re
from pathlib import Path

import pytest

from ray_diloco.protocol.metrics import LABELS, MASTER_METRICS, NODE_METRICS

DASHBOARD = json.loads((Path(__file__).parents[2] / "deploy/grafana-dashboard.json").read_text())
PANELS = DASHBOARD["panels"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
METRICS = {each.shown_as: each for each in (*NODE_METRICS, *MASTER_METRICS)}


def names_in(text: str) -> set[str]:
    return set(re.findall(r"ray_diloco\w+", text))


def test_the_dashboard_shows_every_metric_and_no_other():
    assert names_in(" ".join(QUERIES)) == set(METRICS)


def test_its_choice_of_runs_is_made_from_a_metric_that_there_is():
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert names_in(variables["run"]["definition"]) <= set(METRICS)
    assert variables["run"]["definition"] == variables["run"]["query"]["query"]


@pytest.mark.parametrize("query", QUERIES)
def test_a_counter_is_shown_by_its_rate_and_a_gauge_as_it_is(query):
    (name,) = names_in(query)
    rated = f"rate({name}" in query
    assert rated == (METRICS[name].kind == "counter")


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_chooses_runs_and_groups_by_labels_that_there_are(query):
    assert '{run=~"$run"}' in query
    (grouped,) = re.findall(r"by \(([^)]*)\)", query)
    assert set(grouped.split(", ")) <= set(LABELS)


def test_no_panel_hides_another():
    places = [panel["gridPos"] for panel in PANELS]
    cells = [
        (x, y)
        for at in places
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
