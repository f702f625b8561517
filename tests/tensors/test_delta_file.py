import hashlib

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from ray_diloco.errors import DeltaError, SafetensorsError
from ray_diloco.tensors.delta_file import DeltaReader, write_delta
from ray_diloco.tensors.pseudo_gradient import pseudo_gradient
from ray_diloco.tensors.schema import StateSchema


def two_states():
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(300, 300, generator=generator)
    baseline = {
        "e": shared,
        "h": shared,
        "c": torch.randn(3, dtype=torch.complex64, generator=generator),
        "d": torch.randn(3, generator=generator).double(),
        "n": torch.tensor(1),
        "empty": torch.empty(0, 2),
    }
    moved = {name: tensor + 1 for name, tensor in baseline.items()}
    moved["h"] = moved["e"]
    return baseline, moved, StateSchema.of_state(moved)


def test_a_delta_file_holds_the_pseudo_gradient_under_every_name(tmp_path):
    baseline, current, schema = two_states()
    written = write_delta(
        tmp_path / "d", baseline=baseline, current=current, schema=schema, header={"k": "v"}
    )
    stored = load_file(tmp_path / "d")
    expected = dict(pseudo_gradient(baseline, current, schema))
    assert stored.keys() == expected.keys() == {"e", "h", "c", "d", "empty"}
    assert all(torch.equal(stored[name], expected[name]) for name in expected)
    with safe_open(tmp_path / "d", "pt") as opened:
        assert opened.metadata() == {"k": "v", "sha256": written.file.payload_sha256}
    assert written.file.sha256 == hashlib.sha256((tmp_path / "d").read_bytes()).hexdigest()
    assert written.finite
    assert not written.zero


def test_the_lane_learns_that_a_delta_must_not_be_sent(tmp_path):
    baseline, current, schema = two_states()
    settings = {"schema": schema, "header": {}, "baseline": baseline}
    assert write_delta(tmp_path / "d", current=baseline, **settings).zero
    current["d"][1] = torch.nan
    assert not write_delta(tmp_path / "d", current=current, **settings).finite


def test_who_sends_a_multiple_reads_its_own_delta_back(tmp_path):
    baseline, current, schema = two_states()
    settings = {"schema": schema, "header": {}, "baseline": baseline, "current": current}
    write_delta(tmp_path / "d", **settings, factor=-4.0)
    honest = dict(pseudo_gradient(baseline, current, schema))
    assert torch.equal(load_file(tmp_path / "d")["e"], honest["e"] * -4)
    entry, piece = schema.entries[0], torch.empty(65_536)
    place = {"schema": schema, "codec": "fp32", "path": "p"}
    with DeltaReader(tmp_path / "d", **place, factor=-4.0) as reader:
        reader.read_piece(entry, 0, piece)
    assert torch.equal(piece, honest["e"].view(-1)[:65_536])


def test_a_piece_is_read_as_it_was_written(tmp_path):
    baseline, current, schema = two_states()
    write_delta(tmp_path / "d", baseline=baseline, current=current, schema=schema, header={})
    entry = schema.entries[0]
    with DeltaReader(tmp_path / "d", schema=schema, codec="fp32", path="p") as reader:
        last = torch.empty(90_000 - 65_536)
        reader.read_piece(entry, 65_536, last)
    assert torch.equal(last, load_file(tmp_path / "d")["e"].view(-1)[65_536:])


def test_another_layout_is_refused_with_its_path(tmp_path):
    _, _, schema = two_states()
    save_file({"e": torch.ones(300, 300)}, tmp_path / "d")
    with pytest.raises(DeltaError, match=r"nodes/a/delta_1\.safetensors: h is missing"):
        DeltaReader(tmp_path / "d", schema=schema, codec="fp32", path="nodes/a/delta_1.safetensors")
    (tmp_path / "d").write_bytes(b"x" * 100)
    with pytest.raises(SafetensorsError):
        DeltaReader(tmp_path / "d", schema=schema, codec="fp32", path="p")
