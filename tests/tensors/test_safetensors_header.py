import contextlib
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from ray_diloco.errors import SafetensorsError
from ray_diloco.tensors.safetensors_header import (
    MAX_HEADER_BYTES,
    MAX_TENSORS,
    parse_header,
    plan_header,
)


def framed(header: object, payload: int = 0) -> tuple[bytes, int]:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text, 8 + len(text) + payload


def refused(header: object, payload: int = 0) -> str:
    data, size = framed(header, payload)
    with pytest.raises(SafetensorsError) as caught:
        parse_header(data, file_size=size)
    assert len(str(caught.value)) < 300
    return str(caught.value)


def tensor(start: int, stop: int, *, dtype: str = "F32", shape: object = None) -> dict[str, object]:
    shape = [(stop - start) // 4] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def test_what_the_safetensors_library_writes_is_read():
    data = save(
        {"a": torch.ones(2, 3), "b": torch.tensor(True), "c": torch.ones(1).cfloat()},
        metadata={"k": "v"},
    )
    header = parse_header(data, file_size=len(data))
    assert header.metadata == {"k": "v"}
    assert {name: (info.dtype, info.shape) for name, info in header.tensors.items()} == {
        "a": (torch.float32, (2, 3)),
        "b": (torch.bool, ()),
        "c": (torch.complex64, (1,)),
    }


def test_a_header_is_read_from_the_first_bytes_alone():
    data = save({"a": torch.ones(1000)}, metadata={"k": "v"})
    assert parse_header(data[:200], file_size=len(data)).metadata == {"k": "v"}
    with pytest.raises(SafetensorsError, match="20 bytes of a header of"):
        parse_header(data[:20], file_size=len(data))


def test_a_length_of_two_to_the_sixty_is_refused_before_anything_is_read():
    with pytest.raises(SafetensorsError, match="1152921504606846976 bytes"):
        parse_header((1 << 60).to_bytes(8, "little"), file_size=1 << 62)


def test_a_length_beyond_the_file_is_refused():
    with pytest.raises(SafetensorsError, match="in a file of 50"):
        parse_header((1000).to_bytes(8, "little"), file_size=50)
    with pytest.raises(SafetensorsError, match="has no safetensors header"):
        parse_header(b"", file_size=0)


def test_too_many_keys_are_refused():
    many = {str(place): tensor(0, 0) for place in range(MAX_TENSORS + 1)}
    data, size = framed(many)
    assert size < MAX_HEADER_BYTES
    with pytest.raises(SafetensorsError, match="at most 50000"):
        parse_header(data, file_size=size)


@pytest.mark.parametrize(
    ("header", "payload", "reason"),
    [
        ({"a": tensor(0, 8), "b": tensor(4, 12)}, 12, "begins at payload byte 4, expected 8"),
        ({"a": tensor(0, 4), "b": tensor(8, 12)}, 12, "begins at payload byte 8, expected 4"),
        ({"a": tensor(0, 400)}, 8, "a payload of 8 bytes, its tensors take 400"),
        ({"a": tensor(0, 4)}, 8, "a payload of 8 bytes, its tensors take 4"),
        ({"a": tensor(0, 6, shape=[1])}, 6, "6 bytes, which do not fit its shape"),
        ({"a": tensor(8, 4, shape=[1])}, 8, "do not fit its shape"),
        ({"a": tensor(0, 4, dtype="F31")}, 4, "unknown dtype 'F31'"),
        ({"a": {**tensor(0, 4), "dtype": ["F32"]}}, 4, "unknown dtype"),
        ({"a": tensor(0, 4, shape=[-1])}, 4, "not a list of counts"),
        ({"a": tensor(0, 4, shape=[1.0])}, 4, "not a list of counts"),
        ({"a": tensor(0, 4, shape=[True])}, 4, "not a list of counts"),
        ({"a": tensor(0, 4, shape=[1] * 65)}, 4, "not a list of counts"),
        ({"a": {**tensor(0, 4), "data_offsets": [0, 4, 8]}}, 4, "not two counts"),
        ({"a": {"dtype": "F32", "shape": [1]}}, 4, "not exactly dtype, shape"),
        ({"a": {**tensor(0, 4), "more": 1}}, 4, "not exactly dtype, shape"),
        ({"a": []}, 0, "not exactly dtype, shape"),
        ({"__metadata__": {"k": 1}}, 0, "not a table of strings"),
        ({"__metadata__": []}, 0, "not a table of strings"),
        ({"__metadata__": {"k": "\ud800"}}, 0, "not a table of strings"),
        (b'{"a": 1, "a": 2}', 0, "a key appears twice"),
        (b"[]", 0, "not a JSON object"),
        (b'{"a"', 0, "not JSON"),
        (b'{"\xff": 1}', 0, "not JSON"),
        (b'{"a":' * 100_000, 0, "not JSON"),
        (b'{"a":' + b"9" * 10_000 + b"}", 0, "not JSON"),
    ],
)
def test_what_is_not_well_formed_is_refused_with_the_reason(header, payload, reason):
    assert reason in refused(header, payload)


def test_a_planned_header_is_aligned_and_says_what_was_planned():
    planned = [
        ("half", torch.bfloat16, (3,)),
        ("flag", torch.bool, ()),
        ("wide", torch.float64, (2,)),
        ("none", torch.float32, (0, 4)),
    ]
    text, header = plan_header(planned, {"z": "1"}, least_size=400)
    assert len(text) == header.payload_start == 400
    assert parse_header(text, file_size=len(text) + header.payload_size) == header
    assert all(info.start % info.dtype.itemsize == 0 for info in header.tensors.values())


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 1 << 63))
def test_no_bytes_bring_the_parser_down(data, size):
    with contextlib.suppress(SafetensorsError):
        parse_header(data, file_size=size)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-4, 1 << 64) | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["dtype", "shape", "data_offsets", "__metadata__", "a"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(["__metadata__", "a", "b"]), JSON), st.integers(0, 64))
def test_no_json_brings_the_parser_down(header, payload):
    data, size = framed(header, payload)
    try:
        parsed = parse_header(data, file_size=size)
    except SafetensorsError:
        return
    assert sum(info.stop - info.start for info in parsed.tensors.values()) == payload
