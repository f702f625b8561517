import hashlib
import os
import threading
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from ray_diloco.errors import SafetensorsError
from ray_diloco.tensors.dtypes import DTYPES
from ray_diloco.tensors.safetensors_reader import SafetensorsReader, read_header
from ray_diloco.tensors.safetensors_writer import (
    SafetensorsWriter,
    copy_with_metadata,
    write_state,
)

STATE = {name: torch.ones(2, 3).to(dtype) for name, dtype in DTYPES.items()} | {
    "scalar": torch.tensor(5),
    "empty": torch.empty(0, 3),
    "big": torch.arange(200_000.0),
}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def payload_of(path: Path) -> bytes:
    return path.read_bytes()[read_header(path).payload_start :]


def assert_same(found, expected) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_the_safetensors_library_reads_what_is_written_in_every_dtype(tmp_path):
    written = write_state(tmp_path / "s", STATE, {"k": "ä"}, durable=True)
    assert_same(load_file(written.path), STATE)
    with safe_open(written.path, "pt") as opened:
        assert opened.metadata() == {"k": "ä"}
    assert (written.size, written.sha256) == (written.path.stat().st_size, sha256(written.path))


def test_what_the_safetensors_library_writes_is_read_in_every_dtype(tmp_path):
    save_file(STATE, tmp_path / "s")
    with SafetensorsReader(tmp_path / "s") as reader:
        assert_same({name: reader.read(name) for name in reader.header.tensors}, STATE)


def test_a_stamped_file_carries_the_hash_of_its_payload(tmp_path):
    written = write_state(tmp_path / "s", STATE, {"node_id": "a"}, stamp=True)
    metadata = read_header(written.path).metadata
    expected = hashlib.sha256(payload_of(written.path)).hexdigest()
    assert metadata == {"node_id": "a", "sha256": expected}
    assert written.payload_sha256 == expected
    assert written.sha256 == sha256(written.path)
    assert_same(load_file(written.path), STATE)


def test_tensors_that_share_storage_are_stored_under_both_names(tmp_path):
    shared = torch.ones(3)
    write_state(tmp_path / "s", {"a": shared, "b": shared}, {})
    assert_same(load_file(tmp_path / "s"), {"a": shared, "b": shared})


def test_a_transposed_tensor_is_written_in_its_logical_order(tmp_path):
    matrix = torch.arange(6.0).view(2, 3).t()
    write_state(tmp_path / "s", {"m": matrix}, {})
    assert torch.equal(load_file(tmp_path / "s")["m"], matrix)


def test_pieces_may_come_in_any_order(tmp_path):
    planned = [("a", torch.float32, (4,)), ("b", torch.float32, (2,))]
    with SafetensorsWriter(tmp_path / "s", planned, {}) as writer:
        writer.write("b", torch.tensor([5.0, 6.0]))
        writer.write("a", torch.tensor([3.0, 4.0]), start=2)
        writer.write("a", torch.tensor([1.0, 2.0]))
        written = writer.finish()
    assert load_file(tmp_path / "s")["a"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert written.sha256 == sha256(tmp_path / "s")


@pytest.mark.parametrize("stamp", [False, True])
@pytest.mark.parametrize("names", ["ab", "ba"])
def test_a_large_file_is_hashed_while_it_is_written(tmp_path, names, stamp):
    count, piece = 2_000_000, 65_536
    planned = [(name, torch.float32, (count,)) for name in "ab"]
    values = torch.arange(float(count))
    with SafetensorsWriter(tmp_path / "s", planned, {}, stamp=stamp) as writer:
        for name in names:
            for start in range(0, count, piece):
                writer.write(name, values[start : start + piece], start=start)
        written = writer.finish()
    data = (tmp_path / "s").read_bytes()
    assert written.sha256 == hashlib.sha256(data).hexdigest()
    if stamp:
        payload = data[8 + int.from_bytes(data[:8], "little") :]
        assert written.payload_sha256 == hashlib.sha256(payload).hexdigest()


@pytest.mark.parametrize("old_size", [0, 100, 100_000])
def test_an_old_file_is_written_over_whatever_its_size(tmp_path, old_size):
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_bytes(b"x" * old_size)
    with SafetensorsWriter(new, [("a", torch.float32, (1000,))], {}, over=old) as writer:
        writer.write("a", torch.arange(1000.0))
        written = writer.finish()
    assert torch.equal(load_file(new)["a"], torch.arange(1000.0))
    assert (written.size, written.sha256) == (new.stat().st_size, sha256(new))
    assert not old.exists()


def test_a_file_that_has_another_name_is_not_written_over(tmp_path):
    old, other = tmp_path / "old", tmp_path / "other"
    old.write_bytes(b"x" * 100)
    other.hardlink_to(old)
    with SafetensorsWriter(tmp_path / "s", [("a", torch.float32, (1,))], {}, over=old) as writer:
        writer.write("a", torch.ones(1))
        writer.finish()
    assert other.read_bytes() == b"x" * 100


def test_a_large_file_that_is_not_finished_leaves_no_thread(tmp_path):
    before = threading.active_count()
    with SafetensorsWriter(tmp_path / "s", [("a", torch.float32, (8_000_000,))], {}) as writer:
        writer.write("a", torch.ones(4_000_000))
    assert threading.active_count() == before
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("length", [10, 5_000_000])
def test_a_seal_may_add_metadata_at_the_end_whatever_their_length(tmp_path, length):
    values = torch.arange(700_000.0)
    planned = [("a", torch.float32, (700_000,))]
    added = {"seal": "x" * length}
    with SafetensorsWriter(
        tmp_path / "s", planned, {"k": "v"}, room=1000, seal=lambda known: {**known, **added}
    ) as writer:
        writer.write("a", values)
        written = writer.finish()
    assert read_header(tmp_path / "s").metadata == {"k": "v"} | added
    assert torch.equal(load_file(tmp_path / "s")["a"], values)
    assert (written.size, written.sha256) == (written.path.stat().st_size, sha256(written.path))


def test_a_file_that_is_not_finished_leaves_the_old_one_and_nothing_else(tmp_path):
    write_state(tmp_path / "s", {"a": torch.ones(1)}, {})
    before = sha256(tmp_path / "s")
    with SafetensorsWriter(tmp_path / "s", [("a", torch.float32, (2,))], {}) as writer:
        writer.write("a", torch.ones(1))
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    assert sha256(tmp_path / "s") == before


def test_a_missing_piece_is_our_own_bug(tmp_path):
    with SafetensorsWriter(tmp_path / "s", [("a", torch.float32, (2,))], {}) as writer:
        writer.write("a", torch.ones(1))
        with pytest.raises(AssertionError, match="4 bytes of s were not written"):
            writer.finish()


def test_a_copy_has_the_same_tensors_under_other_metadata(tmp_path):
    write_state(tmp_path / "s", STATE, {"k": "v"})
    written = copy_with_metadata(tmp_path / "s", tmp_path / "t", {"other": "w"})
    assert read_header(tmp_path / "t").metadata == {"other": "w"}
    assert_same(load_file(tmp_path / "t"), STATE)
    assert written.sha256 == sha256(tmp_path / "t")


def test_a_file_that_becomes_shorter_is_an_error_and_no_signal(tmp_path):
    write_state(tmp_path / "s", {"a": torch.ones(100_000)}, {})
    with SafetensorsReader(tmp_path / "s") as reader:
        os.truncate(tmp_path / "s", 5000)
        with pytest.raises(SafetensorsError, match="s ends at byte 5000"):
            reader.read("a")


def test_complex_numbers_are_read_and_written_as_pairs(tmp_path):
    pair = torch.tensor([1.0 + 2.0j, 3.0 + 4.0j])
    write_state(tmp_path / "s", {"c": pair}, {})
    numbers = torch.empty(2)
    with SafetensorsReader(tmp_path / "s") as reader:
        reader.read_into("c", numbers, start=2)
        assert numbers.tolist() == [3.0, 4.0]
        with pytest.raises(IndexError, match="c ends before number 5"):
            reader.read_into("c", numbers, start=3)
