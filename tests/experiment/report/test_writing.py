import pytest
from recorded import RESULT, write_run

from ray_diloco.experiment.report.watching import watch
from ray_diloco.experiment.report.write import report_if_possible
from ray_diloco.experiment.report_main import main


def test_the_command_draws_a_folder_again_and_says_where(tmp_path, capsys):
    folder = write_run(tmp_path / "run")
    main([str(folder)])
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    assert "by-hand" in (folder / "report.html").read_text()


def test_several_folders_become_one_page_here_beside_their_own(tmp_path, monkeypatch, capsys):
    one, other = write_run(tmp_path / "a"), write_run(tmp_path / "b")
    main([str(one)])
    own = (one / "report.html").read_text()
    monkeypatch.chdir(one)
    capsys.readouterr()
    main([".", str(other)])
    assert capsys.readouterr().out.strip() == str(one / "comparison.html")
    assert "2 runs" in (one / "comparison.html").read_text()
    assert (one / "report.html").read_text() == own


def test_output_says_where_the_page_goes(tmp_path, monkeypatch, capsys):
    runs = [str(write_run(tmp_path / name)) for name in "ab"]
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    main([*runs, "--output", "mine.html"])
    assert capsys.readouterr().out.strip() == str(tmp_path / "here" / "mine.html")
    assert [each.name for each in (tmp_path / "here").iterdir()] == ["mine.html"]


def test_a_folder_without_a_run_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path)])
    assert ended.value.code == 2
    assert "expected a run folder" in capsys.readouterr().err


def test_watching_draws_when_something_is_new_and_ends_with_the_run(tmp_path):
    folder, target = write_run(tmp_path / "run", events=[], result=None), tmp_path / "r.html"
    seen = []

    def go_on() -> None:
        seen.append(target.exists() and "refresh" in target.read_text())
        write_run(folder, result=RESULT if len(seen) == 2 else None)

    watch([folder], target, pause=go_on)
    assert seen == [False, True]
    assert 'http-equiv="refresh"' not in target.read_text()


def test_what_cannot_be_drawn_is_a_warning_and_no_error(tmp_path):
    folder = write_run(tmp_path / "run", result={"status": "done"})
    assert "no report could be drawn: UsageError" in (report_if_possible(folder) or "")
    assert not list(folder.glob("report*"))


def test_a_picture_needs_a_browser_and_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        main([str(write_run(tmp_path / "run")), "--png"])
    assert ended.value.code == 2
    assert "expected one of chromium" in capsys.readouterr().err
