import pytest

from ray_diloco.errors import GlobalError
from ray_diloco.protocol.heartbeat import Heartbeat


def test_a_heartbeat_reads_back_as_written():
    beat = Heartbeat(master_id="m", master_epoch=3, beat=17)
    assert Heartbeat.from_json(beat.to_json()) == beat


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"master_id": 1, "master_epoch": 1, "beat": 1}',
        b'{"master_id": "m", "master_epoch": -1, "beat": 1}',
        b'{"master_id": "m", "master_epoch": 1, "beat": true}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_heartbeat_is_refused(data):
    with pytest.raises(GlobalError, match="not a heartbeat"):
        Heartbeat.from_json(data)
