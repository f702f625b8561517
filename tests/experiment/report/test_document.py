import json
import re
import zlib
from base64 import b64decode

from recorded import EVENTS, RESULT, event, write_run

from ray_diloco.experiment.report.document import Document, as_script, table
from ray_diloco.experiment.report.facts import duration, warnings_for
from ray_diloco.experiment.report.run_page import differences
from ray_diloco.experiment.report.run_records import read_run
from ray_diloco.experiment.report.write import document_of

MOST_BYTES = 5_000_000


def test_a_report_stands_alone_and_is_small(tmp_path):
    html = document_of([write_run(tmp_path)]).to_html()
    assert len(html.encode()) < MOST_BYTES / 2
    assert re.findall(r'(?:src|href)="(?!#)[^"]*"', html) == []
    assert "default-src 'none'" in html
    assert "http-equiv=\"refresh\"" not in html  # fmt: skip
    (packed,) = re.findall(r'id="plotly">([^<]*)<', html)
    assert b"plotly.js" in zlib.decompress(b64decode(packed))[:200]


def test_every_figure_has_words_for_those_who_do_not_see_it(tmp_path):
    html = document_of([write_run(tmp_path)]).to_html()
    places = re.findall(r'<div class="plot"[^>]*>', html)
    assert len(places) == 5
    assert all(re.search(r'aria-label="[^"]{20,}"', place) for place in places)
    figures = json.loads(re.findall(r'id="figures">(.*?)</script>', html)[0])
    assert set(figures) == {re.findall(r'id="([^"]*)"', place)[0] for place in places}


def test_what_others_wrote_is_text_and_never_markup(tmp_path):
    evil = "</script><script>alert(1)</script>"
    result = {**RESULT, "failures": {evil: evil}}
    events = [*EVENTS, event("node_started", evil, 1, first_step=0)]
    html = document_of([write_run(tmp_path, events=events, result=result)]).to_html()
    assert "<script>alert" not in html
    assert as_script(evil).count("<") == 0
    assert json.loads(as_script(evil)) == evil


def test_warnings_name_what_went_wrong_and_who(tmp_path):
    result = {
        **RESULT,
        "failures": {"n1": "boom"},
        "crashes": {"n0": 2},
        "range_sum": ["node n0: steps 1-2 are nowhere"],
        "rejected_deltas": 1,
        "rejected": [{"path": "nodes/n1/x", "reason": "not finite"}],
    }
    lines = warnings_for(read_run(write_run(tmp_path, result=result)))
    text = "\n".join(lines)
    for part in ("n1 failed: boom", "n0 crashed 2 times", "steps 1-2 are nowhere", "not finite"):
        assert part in text


def test_a_run_without_trouble_has_no_warnings_of_its_result(tmp_path):
    lines = warnings_for(read_run(write_run(tmp_path, config="nonsense: {x: 1}")))
    assert lines == []


def test_a_run_that_goes_on_says_so(tmp_path):
    page = document_of([write_run(tmp_path, result=None)])
    html = page.to_html(live=True)
    assert "has not ended" in html
    assert 'http-equiv="refresh"' in html


def test_runs_beside_each_other_show_which_settings_differ(tmp_path):
    one, two = {"run": {"seed": 0, "name": "a"}}, {"run": {"seed": 1, "name": "a"}}
    assert differences([one, two]) == [("run.seed", 0, 1)]
    page = document_of([write_run(tmp_path / name) for name in "ab"])
    assert page.to_html().count('name="axis"') == 4


def test_numbers_of_a_table_can_be_sorted_as_numbers():
    html = table(("a",), [(1234567,), (0.25,), (None,), (True,)], label="x", sorts=True)
    assert '<td class="number" data-value="1234567">1,234,567</td>' in html
    assert '<td class="number">–</td>' in html
    assert '<td class="number">true</td>' in html


def test_a_page_without_figures_carries_no_plotly():
    assert len(Document(title="x").to_html()) < 20_000


def test_durations_read_well():
    assert [duration(each) for each in (1.5, 121, 7300)] == ["1.5 s", "2 min 1 s", "2 h 1 min"]
