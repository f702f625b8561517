import io

import pytest
from rich.console import Console
from scripted import ScriptedEngine, ScriptedStage

from ray_diloco.experiment.report.write import document_of
from ray_diloco.experiment.run import run
from ray_diloco.experiment.summary import print_summary


def test_a_run_ends_with_its_report(small, tmp_path):
    result = run(small(), tmp_path, stage=ScriptedStage(ScriptedEngine()))
    html = (tmp_path / "report.html").read_text()
    assert result.numbers["run_id"] in html
    assert "5.5000 → 3.2500" in html


def test_a_run_that_shall_not_draw_does_not(small, tmp_path):
    run(small("run.report=false"), tmp_path, stage=ScriptedStage(ScriptedEngine()))
    assert not (tmp_path / "report.html").exists()


def test_a_report_that_cannot_be_written_costs_no_run_its_result(small, tmp_path):
    (tmp_path / "report.html").mkdir()
    result = run(small(), tmp_path, stage=ScriptedStage(ScriptedEngine()))
    assert result.status == "done"


def test_the_last_words_of_a_run_name_its_report(small, tmp_path):
    result = run(small(), tmp_path, stage=ScriptedStage(ScriptedEngine()))
    screen = io.StringIO()
    print_summary(result, Console(file=screen, width=200))
    assert str(tmp_path / "report.html") in screen.getvalue()


WORKER = ("run.role=worker", "hub.repo_id=team/run", "hub.endpoint=http://h", "hub=embedded")
SINGLE = ("run.role=single", "cluster.nodes=1")


@pytest.mark.parametrize("words", [WORKER, SINGLE], ids=["worker", "single"])
def test_a_run_without_a_master_is_drawn_alone_and_beside_others(small, tmp_path, words):
    run(small(*words), tmp_path / "run", stage=ScriptedStage(ScriptedEngine()))
    assert (tmp_path / "run" / "report.html").exists()
    assert "2 runs" in document_of([tmp_path / "run"] * 2).to_html()


def test_a_run_that_failed_and_diverged_is_drawn_with_its_reasons(small, tmp_path):
    engine = ScriptedEngine(failures={"n1": "boom"}, node={"train_loss": float("nan")})
    run(small(), tmp_path, stage=ScriptedStage(engine))
    assert "n1 failed: boom" in (tmp_path / "report.html").read_text()
