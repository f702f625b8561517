"""Whatever lies in the repository: bad data is refused with its reason, once, and nothing stops."""

import hashlib
import logging
import math
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from master_scene import (
    InlinePort,
    card_of,
    claim,
    delta,
    deltas_listed,
    lead,
    merged_of,
    model,
    published,
    send,
    tensors_of,
)
from safetensors.torch import load_file, save

from ray_diloco.hub.memory import MemoryRepository
from ray_diloco.hub.repository import Addition
from ray_diloco.protocol.delta_card import DeltaCard
from ray_diloco.protocol.paths import delta_path

PATH = delta_path("bad", 10)


def file_of(
    tensors: dict[str, torch.Tensor] | None = None, *, stamped: bool = False, **header: Any
) -> bytes:
    """A delta of node ``bad`` with some of it changed; a header field that is None is left out."""
    fields: dict[str, Any] = card_of("bad", 10).header() | header
    if not stamped and fields["sha256"] == "0" * 64:
        fields["sha256"] = None
    given_fields = {key: value for key, value in fields.items() if value is not None}
    return save(tensors or tensors_of(1), metadata=given_fields)


def with_value(value: float) -> bytes:
    tensors = tensors_of(1)
    tensors["w"][1, 2] = value
    return file_of(tensors)


def with_header(text: bytes, *, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(64)


def stamped() -> bytes:
    """Sound, with the payload's hash in its header."""
    plain = file_of()
    start = 8 + struct.unpack("<Q", plain[:8])[0]
    return file_of(sha256=hashlib.sha256(plain[start:]).hexdigest())


def flipped(content: bytes, place: int) -> bytes:
    changed = bytearray(content)
    changed[place] ^= 0x10
    return bytes(changed)


def without(name: str) -> dict[str, torch.Tensor]:
    return {key: tensor for key, tensor in tensors_of(1).items() if key != name}


def keys(count: int) -> bytes:
    return b"{" + b",".join(b'"k%d":0' % number for number in range(count)) + b"}"


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "nan": (lambda: with_value(math.nan), "not finite"),
    "infinity": (lambda: with_value(-math.inf), "not finite"),
    "1e38": (lambda: with_value(1e38), "above the limit"),
    "missing key": (lambda: file_of(without("h")), "h is missing"),
    "unknown key": (lambda: file_of(tensors_of(1) | {"x": torch.ones(1)}), "x is not"),
    "integer key": (
        lambda: file_of(tensors_of(1) | {"count": torch.tensor(1.0)}),
        "count is not",
    ),
    "shape": (lambda: file_of(tensors_of(1) | {"w": torch.ones(3, 4)}), "w has shape"),
    "dtype": (lambda: file_of(tensors_of(1) | {"h": torch.ones(5).bfloat16()}), "h has dtype"),
    "other node": (lambda: file_of(node_id="good"), "the header says node"),
    "other step": (lambda: file_of(local_step="20"), "the header says node"),
    "odd step": (lambda: file_of(local_step="+10"), "not an integer"),
    "no step": (lambda: file_of(local_step=None), "no local_step"),
    "other algorithm": (lambda: file_of(algorithm="other"), "algorithm"),
    "future base": (lambda: file_of(base_outer_step="99"), "is above the outer step"),
    "no base": (lambda: file_of(base_outer_step="-1"), "never had a global"),
    "other schema": (lambda: file_of(schema="f" * 64), "schema"),
    "other run": (lambda: file_of(run_id="other"), "belongs to run"),
    "other codec": (lambda: file_of(codec="magic"), "codec"),
    "covers backwards": (lambda: file_of(covers="20-10"), "covers"),
    "covers beyond": (lambda: file_of(covers="1-11"), "beyond local step"),
    "long nonce": (lambda: file_of(nonce="n" * 1000), "nonce"),
    "payload hash": (lambda: file_of(sha256="f" * 64), "sha256"),
    "truncated": (lambda: stamped()[:-3], ""),
    "cut in the header": (lambda: file_of()[:20], ""),
    "empty": (lambda: b"", ""),
    "flipped payload": (lambda: flipped(stamped(), -2), "sha256"),
    "flipped header": (lambda: flipped(stamped(), 9), ""),
    "header of 2^60": (lambda: with_header(b"{}", length=2**60), ""),
    "header that is a list": (lambda: with_header(b"[]"), ""),
    "header nested deep": (lambda: with_header(b"[" * 100_000), ""),
    "million keys": (lambda: with_header(keys(10**6)), "a header of"),
    "many keys": (lambda: with_header(keys(10**5)), "100000 tensors"),
    "offsets beyond": (
        lambda: with_header(b'{"w":{"dtype":"F32","shape":[4,3],"data_offsets":[0,4800]}}'),
        "",
    ),
    "huge": (lambda: bytes(17 * 1024 * 1024), "more than a delta"),
}


def led_beside(content: bytes, folder: Path) -> Any:
    """A run in which one node sends this file and another one a good delta."""
    repository = MemoryRepository()
    send(repository, Addition(path=PATH, source=content), delta("good", 10))
    send(repository, claim("bad", "done"), claim("good", "done"))
    report = lead(repository, folder, expected=("good", "bad"), max_delta_norm=100.0)
    assert merged_of(report)["good"] == "1-10"
    assert deltas_listed(repository) == []
    return report, published(repository)


@pytest.fixture(scope="module")
def good_alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    repository = MemoryRepository()
    send(repository, delta("good", 10), claim("good", "done"))
    return lead(repository, tmp_path_factory.mktemp("good"), expected=("good",)).model_sha256


@pytest.mark.parametrize("kind", BAD)
def test_bad_data_is_refused_once_with_its_reason_and_told_to_its_node(
    tmp_path: Path, good_alone: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, reason = BAD[kind]
    with caplog.at_level(logging.WARNING):
        report, card = led_beside(make(), tmp_path)
    assert report.model_sha256 == good_alone
    (refused,) = report.rejected
    assert (refused["node"], refused["local_step"], refused["path"]) == ("bad", 10, PATH)
    assert reason in refused["reason"]
    assert len([line for line in caplog.messages if PATH in line]) == 1
    ((step, told),) = card.nodes["bad"].rejected
    assert step == 10
    assert told == refused["reason"][:200]


def test_a_refused_delta_of_a_known_nonce_counts_as_rejected_and_passes_the_mark(tmp_path):
    report, card = led_beside(with_value(math.nan), tmp_path)
    account = report.accounts["bad"]["nonce-bad"]
    assert (account["merged"], account["rejected"]) == ("", "1-10")
    assert card.nodes["bad"].last_local_step == 10


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_damage_to_a_delta_is_refused_or_changes_nothing_that_counts(good_alone, data):
    content = bytearray(stamped())
    for _ in range(data.draw(st.integers(1, 4))):
        match data.draw(st.sampled_from(["flip", "cut", "grow", "swap"])):
            case "flip" if content:
                content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(
                    st.integers(1, 255)
                )
            case "cut":
                del content[data.draw(st.integers(0, len(content))) :]
            case "grow":
                content += data.draw(st.binary(min_size=1, max_size=40))
            case _:
                length = data.draw(st.sampled_from([0, 1, 7, 2**31, 2**60, 2**64 - 1]))
                content[:8] = struct.pack("<Q", length)
    with tempfile.TemporaryDirectory() as folder:
        report, _ = led_beside(bytes(content), Path(folder))
    if report.rejected:
        assert report.model_sha256 == good_alone
    else:
        assert report.deltas_merged == 2


@settings(max_examples=60, deadline=None)
@given(
    fields=st.dictionaries(
        st.sampled_from([*DeltaCard.__dataclass_fields__, "other"]), st.text(max_size=20)
    )
)
def test_any_header_is_refused_or_sound(good_alone, fields):
    with tempfile.TemporaryDirectory() as folder:
        report, _ = led_beside(file_of(**fields), Path(folder))
    assert report.deltas_merged + len(report.rejected) == 2
    assert not report.rejected or report.model_sha256 == good_alone


@pytest.mark.parametrize(
    "path",
    [
        "nodes/good/delta_+20.safetensors",
        "nodes/good/delta_2_0.safetensors",
        "nodes/good/delta_020.safetensors",
        "nodes/good/delta_20.safetensors.bak",
        "nodes/../delta_20.safetensors",
        "nodes/good/../other/delta_20.safetensors",
        "nodes/.hidden/node.json",
        "nodes/good/more/delta_20.safetensors",
        "nodes/delta_20.safetensors",
    ],
)
def test_a_file_that_is_no_delta_is_named_once_and_otherwise_ignored(
    tmp_path: Path, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    repository = MemoryRepository()
    send(repository, delta("good", 10), Addition(path=path, source=file_of()))
    acts = iter([lambda: send(repository.another(), claim("good", "done"))])
    port = InlinePort(lambda: next(acts, lambda: None)())
    report = lead(repository, tmp_path, port=port, expected=("good",))
    assert merged_of(report) == {"good": "1-10"}
    assert [line for line in caplog.messages if path in line] == [
        f"{path} is ignored: it is not the path of a delta or a claim"
    ]


def test_equal_bytes_under_two_names_are_two_files(tmp_path):
    repository = MemoryRepository()
    good = delta("good", 10)
    send(repository, good, Addition(path=PATH, source=good.source))
    send(repository, claim("bad", "done"), claim("good", "done"))
    report = lead(repository, tmp_path, expected=("good", "bad"))
    assert merged_of(report)["good"] == "1-10"
    assert [refused["path"] for refused in report.rejected] == [PATH]


def test_a_malformed_claim_stops_nothing(tmp_path):
    repository = MemoryRepository()
    send(repository, Addition(path="nodes/bad/node.json", source=b"[1,"), delta("good", 10))
    send(repository, claim("good", "done"))
    report = lead(repository, tmp_path, expected=("good",), node_timeout=1.0)
    assert merged_of(report) == {"good": "1-10"}


def test_the_model_is_as_it_was_when_all_that_came_was_bad(tmp_path):
    repository = MemoryRepository()
    send(repository, Addition(path=PATH, source=with_value(math.nan)), claim("bad", "done"))
    report = lead(repository, tmp_path, expected=("bad",))
    commit = repository.head_commit()
    repository.fetch("global/latest.safetensors", commit=commit, destination=tmp_path / "model")
    found = load_file(tmp_path / "model")
    assert all(torch.equal(found[name], tensor) for name, tensor in model().items())
    assert report.outer_steps == 0
    assert [step for step, _ in published(repository).nodes["bad"].rejected] == [10]
