import pytest

from ray_diloco.experiment.events import EventLog, cut_torn_line, read_events
from ray_diloco.timing.wall import WallClock


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (b"", b""),
        (b"whole\n", b"whole\n"),
        (b"half", b""),
        (b"whole\nhalf", b"whole\n"),
        (b"whole\n" + b"x" * 200_000, b"whole\n"),
        (b"x" * 200_000, b""),
    ],
)
def test_half_a_line_goes_and_whole_ones_stay(text, kept, tmp_path):
    file = tmp_path / "lines"
    file.write_bytes(text)
    cut_torn_line(file)
    assert file.read_bytes() == kept


def test_a_file_that_is_not_there_stays_so(tmp_path):
    cut_torn_line(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_events_after_a_torn_line_can_be_read(tmp_path):
    file = tmp_path / "events.jsonl"
    file.write_text('{"event": "a", "at": 1}\n{"event": "b", "at')
    log = EventLog(file, WallClock())
    log.keep([{"event": "c", "at": 2}])
    log.close()
    assert [each["event"] for each in read_events(file)] == ["a", "c"]
